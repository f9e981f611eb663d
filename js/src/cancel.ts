// Asking the kernel to cancel rows, and noticing when nobody answers.

export const ANSWER_MS = 500;

export type Answer = "asked" | "heard" | "silent";

/**
 * Where a page begins to number its questions: all pages of a widget hear all answers, and must not take one
 * another's for their own.
 */
export function anyNumber(): number {
  return Math.floor(Math.random() * 2 ** 40);
}

/** Asks of one widget. The kernel acknowledges each; a busy one without subshells cannot. */
export class Cancels {
  #last = anyNumber();
  #waiting = new Map<number, (answer: Answer) => void>();
  #send: (ask: number, rows: number[]) => void;

  constructor(send: (ask: number, rows: number[]) => void) {
    this.#send = send;
  }

  /** Ask; `tell` hears "asked" at once, then "heard", or "silent" after half a second and "heard" if it comes late. */
  ask(rows: number[], tell: (answer: Answer) => void): void {
    this.#last += 1;
    const ask = this.#last;
    this.#waiting.set(ask, tell);
    tell("asked");
    this.#send(ask, rows);
    setTimeout(() => this.#waiting.get(ask)?.("silent"), ANSWER_MS);
  }

  heard(ask: number): void {
    this.#waiting.get(ask)?.("heard");
    this.#waiting.delete(ask);
  }
}
