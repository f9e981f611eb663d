// What a page knows of a run, and how it asks the kernel. No DOM here.

import type { AnyModel } from "@anywidget/types";
import type { Asked, Body, Figures, FromKernel, Snapshot, ToKernel, Traits, Why } from "./boardwire";
import { ANSWER_MS, anyNumber } from "./cancel";
import { Run } from "./run";

/** A page that waits for a history asks for it again, should what it asked or was sent have been lost. */
const AGAIN_MS = 900;

export type AskState = "asked" | "silent" | "done" | "refused";
export type Told = (state: AskState, value: unknown, error: string) => void;

export class Board {
  run = new Run();
  figures: Figures | null = null;
  title = "";
  /** False for a loaded trace and a saved page: nothing can be asked for. */
  live = true;
  final = false;
  lost = false;
  /** Counts histories: whoever keeps something of a run looks whether it is still the same one. */
  era = 0;
  why: Record<string, Why[]> = {};
  #seq = -1;
  #waits = true;
  #parts: Body[] = [];
  /** When anything of the history was asked for or came. */
  #askedAt = performance.now();
  #closed = false;
  #ask = anyNumber();
  #asks = new Map<number, { told: Told; timer: ReturnType<typeof setTimeout> }>();
  #listeners = new Set<() => void>();
  #send: (message: ToKernel) => void;

  constructor(send: (message: ToKernel) => void) {
    this.#send = send;
  }

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** How far the first history is: here, under way, or nothing heard for a while. */
  get history(): "here" | "coming" | "silent" {
    if (!this.#waits || this.lost) return "here";
    return performance.now() - this.#askedAt > AGAIN_MS ? "silent" : "coming";
  }

  /** Whether the kernel can be asked to act. */
  get acts(): boolean {
    return this.live && !this.final && !this.lost;
  }

  snapshot(snapshot: Snapshot): void {
    this.title = snapshot.title;
    this.live = snapshot.live;
    this.final = snapshot.final;
    this.lost = false;
    if (snapshot.figures) this.figures = snapshot.figures;
    if (snapshot.body) {
      this.#begin([snapshot.body]);
      this.#waits = false;
    }
    this.tell();
  }

  hear(message: FromKernel): void {
    if (this.#closed) return;
    if (message.kind === "delta") this.#delta(message);
    else if (message.kind === "history") this.#history(message);
    else if (message.kind === "ack") this.#heard(message.ask);
    else if (message.kind === "answer") this.#answered(message);
    this.tell();
  }

  /** The front end lost the kernel. */
  lose(): void {
    this.lost = !this.final;
    this.tell();
  }

  /** Ask the kernel; `told` hears "asked" at once, "silent" when half a second brought no ack, and the answer. */
  ask(asked: Asked, told: Told): void {
    if (this.#closed) return;
    this.#ask += 1;
    const ask = this.#ask;
    const timer = setTimeout(() => told("silent", null, ""), ANSWER_MS);
    this.#asks.set(ask, { told, timer });
    told("asked", null, "");
    this.#send({ kind: "ask", ask, ...asked });
  }

  /**
   * Why a row waited (or at which moment it did what): asked of the kernel, or read from a saved page. That one holds
   * only the answer to the whole question, and `at` says which was answered.
   */
  askWhy(
    row: number,
    at: number | null,
    tell: (reasons: Why[], state: AskState, at: number | null) => void,
  ): void {
    const kept = this.why[row];
    if (kept) {
      tell(kept, "done", null);
      return;
    }
    this.ask(at === null ? { do: "why", row } : { do: "why", row, at }, (state, value) => {
      tell(Array.isArray(value) ? (value as Why[]) : [], state, at);
    });
  }

  /** Nobody looks any more: no question is open, none is asked. */
  close(): void {
    this.#closed = true;
    for (const { timer } of this.#asks.values()) clearTimeout(timer);
    this.#asks.clear();
  }

  tell(): void {
    for (const listener of this.#listeners) listener();
  }

  #delta(message: { seq: number } & Body): void {
    // Nothing comes between the parts of a history: the rest of it was lost.
    if (this.#parts.length) this.#askAnew();
    if (this.#waits) {
      if (this.history === "silent") this.#askAnew();
      return;
    }
    if (message.seq <= this.#seq) return;
    if (message.seq !== this.#seq + 1) {
      this.#askAnew();
      return;
    }
    this.#seq = message.seq;
    this.#take(message);
  }

  #history(message: { seq: number; part: number; parts: number } & Body): void {
    this.#askedAt = performance.now();
    if (message.part === 0) this.#parts = [];
    if (message.part !== this.#parts.length) {
      if (this.#parts.length) this.#askAnew();
      return;
    }
    this.#parts.push(message);
    if (this.#parts.length < message.parts) return;
    this.#begin(this.#parts);
    this.#parts = [];
    this.#seq = message.seq;
    this.#waits = false;
  }

  #askAnew(): void {
    this.#waits = true;
    this.#parts = [];
    this.#askedAt = performance.now();
    this.#send({ kind: "resync", buffers: false });
  }

  /** Everything anew, from parts that may each hold any of it. */
  #begin(parts: Body[]): void {
    this.run = new Run();
    this.era += 1;
    this.#take(parts.length === 1 ? (parts[0] as Body) : joined(parts));
  }

  #take(body: Body): void {
    this.run.add(body);
    if (body.figures) this.figures = body.figures;
    if (body.why) this.why = body.why;
  }

  #heard(ask: number): void {
    clearTimeout(this.#asks.get(ask)?.timer);
  }

  #answered({ ask, ok, value, error }: { ask: number; ok: boolean; value: unknown; error: string }): void {
    const kept = this.#asks.get(ask);
    if (!kept) return;
    clearTimeout(kept.timer);
    this.#asks.delete(ask);
    kept.told(ok ? "done" : "refused", value, error);
  }
}

/** Parts of a history as one body: each table's columns end to end. */
function joined(parts: Body[]): Body {
  const whole: Record<string, unknown> = {};
  for (const part of parts)
    for (const [name, value] of Object.entries(part)) {
      const before = whole[name];
      if (before && isTable(value) && isTable(before)) {
        for (const [column, values] of Object.entries(value))
          before[column] = (before[column] ?? []).concat(values);
      } else whole[name] = isTable(value) ? { ...value } : value;
    }
  return whole as Body;
}

function isTable(value: unknown): value is Record<string, unknown[]> {
  return typeof value === "object" && value !== null && Object.values(value).every(Array.isArray);
}

/** Joins a board to a front end's model until `signal` aborts. */
export function connect(model: AnyModel<Traits>, page: string, signal: AbortSignal | undefined): Board {
  const send = (message: ToKernel) => {
    try {
      model.send(message);
    } catch (error) {
      console.debug("mlx-notebook: the kernel cannot be reached", error);
    }
  };
  const board = new Board(send);
  const onMessage = (message: FromKernel) => board.hear(message);
  const onSnapshot = () => board.snapshot(model.get("snapshot"));
  const onLoss = () => board.lose();
  model.on("msg:custom", onMessage);
  model.on("change:snapshot", onSnapshot);
  // The widget manager's own event, when it gives up the model's connection: a kernel restart does that.
  model.on("comm_live_update", onLoss);
  signal?.addEventListener("abort", () => {
    model.off("msg:custom", onMessage);
    model.off("change:snapshot", onSnapshot);
    model.off("comm_live_update", onLoss);
    board.close();
  });
  onSnapshot();
  send({ kind: "hello", page, buffers: false });
  return board;
}
