// What a page knows of a gateway: the run, facts of its rows, figures, texts; and how it asks. No DOM here.

import type { AnyModel } from "@anywidget/types";
import type { Action, Figures, FromKernel, News, Pieces, RowFacts, ToKernel, Traits, Why } from "./boardwire";
import { ANSWER_MS } from "./cancel";
import { Run } from "./run";

export type Told = (state: "asked" | "silent" | "done" | "refused", words: string) => void;

/** A row's tokens as text. */
export interface RowText {
  pieces: string[];
  p: (number | null)[];
  top: [string, number][][];
}

const BLANK: RowFacts = {
  id: 0,
  prompt: "",
  status: "queued",
  cached: 0,
  limit: 0,
  priority: 0,
  waiting: "",
  note: "",
};

export class Board {
  run = new Run();
  facts = new Map<number, RowFacts>();
  figures: Figures | null = null;
  texts = new Map<number, RowText>();
  why = new Map<string, Why[]>();
  title = "";
  /** The kernel will say nothing more: a saved page, a closed gateway. */
  final = false;
  lost = false;
  #seq = -1;
  #behind = false;
  #ask = 0;
  #asks = new Map<number, (ok: boolean, words: string) => void>();
  #reasons = new Map<number, (reasons: Why[]) => void>();
  #listeners = new Set<() => void>();
  #send: (message: ToKernel) => void;

  constructor(send: (message: ToKernel) => void) {
    this.#send = send;
  }

  subscribe(listener: () => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  hear(message: FromKernel): void {
    if (message.kind === "news") this.#news(message);
    else if (message.kind === "ack") {
      this.#asks.get(message.ask)?.(message.ok, message.words);
      this.#asks.delete(message.ask);
    } else if (message.kind === "because") {
      this.#reasons.get(message.ask)?.(message.reasons);
      this.#reasons.delete(message.ask);
    }
    this.tell();
  }

  /** The front end lost the kernel. */
  lose(): void {
    this.lost = !this.final;
    this.tell();
  }

  factsOf(id: number): RowFacts {
    return this.facts.get(id) ?? { ...BLANK, id };
  }

  /** Ask the kernel to act; `told` hears "asked" at once, and "silent" when half a second brought no answer. */
  act(action: Action, row: number, value: number, told: Told): void {
    this.#ask += 1;
    const ask = this.#ask;
    told("asked", "");
    const timer = setTimeout(() => told("silent", ""), ANSWER_MS);
    this.#asks.set(ask, (ok, words) => {
      clearTimeout(timer);
      told(ok ? "done" : "refused", words);
    });
    this.#send({ kind: "do", ask, action, row, value });
  }

  /** Why a row waited, at a moment of the run; saved pages know whole rows only. */
  askWhy(row: number, at_us: number, tell: (reasons: Why[]) => void): void {
    const kept = this.why.get(`${row}`);
    if (this.final && kept) return tell(kept);
    this.#ask += 1;
    this.#reasons.set(this.#ask, tell);
    this.#send({ kind: "why", ask: this.#ask, row, at_us });
  }

  follow(rows: number[]): void {
    this.#send({ kind: "follow", rows });
  }

  want(): void {
    this.#send({ kind: "want", after: this.run.next });
  }

  tell(): void {
    for (const listener of this.#listeners) listener();
  }

  #news(news: News): void {
    this.lost = false;
    if (!news.whole && news.seq !== this.#seq + 1 && !this.#behind) {
      this.#behind = true;
      this.want();
    }
    if (news.whole) this.#behind = false;
    this.#seq = news.seq;
    if (news.title) this.title = news.title;
    if (news.figures) this.figures = news.figures;
    for (const row of news.rows) this.facts.set(row.id, { ...this.factsOf(row.id), ...row });
    for (const part of news.texts) this.#addPieces(part);
    for (const [row, reasons] of Object.entries(news.reasons ?? {})) this.why.set(row, reasons);
    this.final = news.final;
    if (news.log && !this.run.add(news.log) && !this.#behind) {
      this.#behind = true;
      this.want();
    }
  }

  #addPieces(part: Pieces): void {
    let text = this.texts.get(part.id);
    if (!text || part.first === 0) {
      text = { pieces: [], p: [], top: [] };
      this.texts.set(part.id, text);
    }
    if (part.first > text.pieces.length) return;
    text.pieces.splice(part.first, Number.POSITIVE_INFINITY, ...part.pieces);
    text.p.splice(part.first, Number.POSITIVE_INFINITY, ...part.p);
    text.top.splice(part.first, Number.POSITIVE_INFINITY, ...part.top);
  }
}

/** Joins a board to a front end's model until `signal` aborts. */
export function connect(model: AnyModel<Traits>, page: string, signal: AbortSignal | undefined): Board {
  const board = new Board((message) => {
    try {
      model.send(message);
    } catch {
      board.lose();
    }
  });
  const onMessage = (message: FromKernel) => board.hear(message);
  const onSnapshot = () => board.hear(model.get("snapshot"));
  const onLoss = () => board.lose();
  model.on("msg:custom", onMessage);
  model.on("change:snapshot", onSnapshot);
  model.on("comm_live_update", onLoss);
  signal?.addEventListener("abort", () => {
    model.off("msg:custom", onMessage);
    model.off("change:snapshot", onSnapshot);
    model.off("comm_live_update", onLoss);
  });
  board.hear(model.get("snapshot"));
  if (!board.final) model.send({ kind: "hello", page });
  return board;
}
