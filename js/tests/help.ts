// A model as the front end would make it, and rows to feed it with.

import type { AnyModel } from "@anywidget/types";
import type { FromKernel, RowState, Snapshot, ToKernel, Traits } from "../src/wire";

type Handler = (...args: unknown[]) => void;

/** A stream's by default; any widget's, given its traits and its words. */
export class FakeModel<T extends object = Traits, Said = ToKernel, Heard = FromKernel> {
  sent: Said[] = [];
  saved = 0;
  broken = false;
  traits: T;
  #handlers = new Map<string, Set<Handler>>();

  constructor(traits: T) {
    this.traits = traits;
  }

  get<K extends keyof T>(name: K): T[K] {
    return this.traits[name];
  }

  /** As the page sets a trait: views that listen hear of it. */
  set<K extends keyof T & string>(name: K, value: T[K]): void {
    this.traits[name] = value;
    this.emit(`change:${name}`);
  }

  save_changes(): void {
    this.saved += 1;
  }

  send(message: Said): void {
    if (this.broken) throw new Error("Cannot send");
    this.sent.push(message);
  }

  on(name: string, handler: Handler): void {
    const handlers = this.#handlers.get(name) ?? new Set();
    this.#handlers.set(name, handlers.add(handler));
  }

  off(name: string, handler: Handler): void {
    this.#handlers.get(name)?.delete(handler);
  }

  emit(name: string, ...args: unknown[]): void {
    for (const handler of this.#handlers.get(name) ?? []) handler(...args);
  }

  says(message: Heard): void {
    this.emit("msg:custom", message, []);
  }

  asModel(): AnyModel<T> {
    return this as unknown as AnyModel<T>;
  }
}

export function row(changes: Partial<RowState> = {}): RowState {
  return {
    status: "decode",
    prompt_tokens: 8,
    prefilled: 8,
    generated: 0,
    tps: null,
    first_s: null,
    seconds: null,
    waiting: "",
    note: "",
    prompt: "Tell me about a fox",
    text: "",
    ...changes,
  };
}

export function snapshot(rows: RowState[], changes: Partial<Snapshot> = {}): Snapshot {
  return { seq: 0, count: 0, title: "smollm2", final: false, rows, ...changes };
}

/** The number that a page gave to what it asked last. */
export function lastAsk(sent: readonly object[]): number {
  const asks = sent.flatMap((one) => ("ask" in one ? [one.ask as number] : []));
  return asks.at(-1) ?? -1;
}
