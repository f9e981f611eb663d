// A row's text as tokens that can be pointed at. Text only ever goes in as text.

import { element, setText } from "./dom";
import { tokens } from "./words";

/** Spans that one row may have in a page; a longer text shows its end. */
const MOST_SPANS = 6000;

export interface TokenNews {
  texts: readonly string[];
  chances: readonly (number | null | undefined)[];
}

/** How a probability is marked: by shade and by underline, from "as expected" (0) to "a surprise" (3). */
export function surprise(chance: number | null | undefined): number | null {
  if (chance === null || chance === undefined) return null;
  return chance >= 0.9 ? 0 : chance >= 0.5 ? 1 : chance >= 0.2 ? 2 : 3;
}

export class TokenText {
  readonly root = element("div", "mlx-tokens");
  /** Told the token (from 0) under the pointer or the cursor, -1 when there is none. */
  onPoint: (token: number) => void = () => {};
  #spans: HTMLSpanElement[] = [];
  #first = 0;
  #shown: string[] = [];
  #lit: HTMLElement[] = [];
  #brushed: [number, number] | null = null;
  #cursor = -1;
  #left = element("i", "mlx-left-out");

  constructor(label: string, signal?: AbortSignal) {
    const { root } = this;
    root.dataset.stop = "cursor";
    root.dir = "auto";
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", label);
    const options = signal ? { signal } : {};
    root.addEventListener("pointerover", (event) => this.#point(event.target), options);
    root.addEventListener("pointerleave", () => this.#at(-1), options);
    root.addEventListener("blur", () => this.#at(-1), options);
    root.addEventListener("keydown", (event) => this.#onKey(event), options);
  }

  /** The token under the keyboard's cursor, -1 for none. */
  get cursor(): number {
    return this.#cursor;
  }

  update({ texts, chances }: TokenNews): void {
    const first = Math.max(0, texts.length - MOST_SPANS);
    if (first > this.#first + 1000 || texts.length < this.#shown.length) this.#clear(first);
    const fresh = document.createDocumentFragment();
    for (let i = this.#first; i < texts.length; i++) {
      const at = i - this.#first;
      const text = texts[i] ?? "";
      const old = this.#spans[at];
      if (old) {
        if (this.#shown[i] !== text) old.textContent = text;
      } else {
        const made = document.createElement("span");
        made.textContent = text;
        made.dataset.n = String(i);
        this.#spans.push(made);
        fresh.append(made);
      }
      this.#shown[i] = text;
      const span = this.#spans[at];
      const level = surprise(chances[i]);
      if (span && level !== null && span.dataset.p === undefined) span.dataset.p = String(level);
    }
    this.root.append(fresh);
    if (!this.#first) return;
    setText(this.#left, `(${tokens(this.#first)} before these are not drawn)\n`);
    this.root.prepend(this.#left);
  }

  colour(on: boolean): void {
    this.root.classList.toggle("mlx-coloured", on);
  }

  /** Lights one token up, none for -1. */
  light(token: number): void {
    for (const span of this.#lit) span.classList.remove("mlx-hot");
    const span = this.#spans[token - this.#first];
    this.#lit = span ? [span] : [];
    span?.classList.add("mlx-hot");
  }

  /** Marks tokens `from` to `to` (inclusive). */
  brush(range: [number, number] | null): void {
    const [a, b] = range ?? [0, -1];
    const [oldA, oldB] = this.#brushed ?? [0, -1];
    if (a === oldA && b === oldB) return;
    for (let i = oldA; i <= oldB; i++)
      if (i < a || i > b) this.#spans[i - this.#first]?.classList.remove("mlx-brushed");
    for (let i = a; i <= b; i++) this.#spans[i - this.#first]?.classList.add("mlx-brushed");
    this.#brushed = range;
  }

  /** Brings a token into the box's view, without moving the page. */
  reveal(token: number): void {
    const span = this.#spans[token - this.#first];
    if (!span) return;
    const top = span.offsetTop - this.root.offsetTop;
    if (top < this.root.scrollTop || top > this.root.scrollTop + this.root.clientHeight - 20)
      this.root.scrollTop = Math.max(0, top - this.root.clientHeight / 2);
  }

  #clear(first: number): void {
    this.root.replaceChildren();
    this.#spans = [];
    this.#shown = [];
    this.#first = first;
    this.#brushed = null;
    this.#lit = [];
  }

  #point(target: EventTarget | null): void {
    if (target instanceof HTMLElement && target.dataset.n !== undefined) this.#at(Number(target.dataset.n));
  }

  #at(token: number): void {
    if (token === this.#cursor) return;
    this.#cursor = token;
    this.onPoint(token);
  }

  #onKey(event: KeyboardEvent): void {
    const last = this.#shown.length - 1;
    if (last < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    const here = this.#cursor;
    const to = { ArrowRight: here + 1, ArrowLeft: here < 0 ? last : here - 1, Home: this.#first, End: last }[
      event.key
    ];
    if (to === undefined) return;
    event.preventDefault();
    this.#at(Math.max(this.#first, Math.min(last, to)));
    this.reveal(this.#cursor);
  }
}
