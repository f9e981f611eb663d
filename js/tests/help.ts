// A model as the front end would make it, and rows to feed it with.

import type { AnyModel } from "@anywidget/types";
import type { FromKernel, RowState, Snapshot, ToKernel, Traits } from "../src/wire";

type Handler = (...args: unknown[]) => void;

export class FakeModel {
  sent: ToKernel[] = [];
  broken = false;
  #snapshot: Snapshot;
  #handlers = new Map<string, Set<Handler>>();

  constructor(snapshot: Snapshot) {
    this.#snapshot = snapshot;
  }

  get(_name: "snapshot"): Snapshot {
    return this.#snapshot;
  }

  send(message: ToKernel): void {
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

  says(message: FromKernel): void {
    this.emit("msg:custom", message, []);
  }

  snapshot(snapshot: Snapshot): void {
    this.#snapshot = snapshot;
    this.emit("change:snapshot");
  }

  sentKinds(): string[] {
    return this.sent.map((message) => message.kind);
  }

  asModel(): AnyModel<Traits> {
    return this as unknown as AnyModel<Traits>;
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
