// One row's part of the view: its state, its text, its buttons.

import type { Answer } from "./cancel";
import { copyText } from "./clipboard";
import { button, element, setText, show } from "./dom";
import { TokenText } from "./tokentext";
import { isOver, type RowState, type TokenFacts } from "./wire";
import { figures, prelude, SIGNS, STATES, statusWords, tokenWords } from "./words";

const STILL_AT_BOTTOM_PX = 24;
const COPIED_MS = 1500;
/** A pointer rests so long on a token before the kernel is asked about it. */
const REST_MS = 120;

const HINT =
  "Paler is likelier, darker and underlined is more of a surprise. Point at a token, or use the arrow keys in the text.";

/** What a row wants of its view, which knows the row's place. */
export interface RowAsks {
  cancel(tell: (answer: Answer) => void): void;
  /** The text token by token, or no longer. */
  tokens(on: boolean): void;
  /** What is known of the n-th token (from 1). */
  token(n: number): void;
  /** The reader chooses the row, or no longer. */
  choose(): void;
}

export class RowView {
  readonly root: HTMLElement;
  #mark = element("span", "mlx-mark");
  #word = element("span", "mlx-word");
  #prompt = element("span", "mlx-prompt");
  #figures = element("span", "mlx-figures");
  #copy = button("mlx-copy", "Copy");
  #cancel = button("mlx-cancel", "Cancel");
  #before = element("div", "mlx-before");
  #meter = element("div", "mlx-meter", element("i", ""));
  #text = element("div", "mlx-text");
  #shown = document.createTextNode("");
  #note = element("div", "mlx-note");
  #tokens = button("mlx-by-token", "Tokens");
  #tokenText: TokenText | null = null;
  #tokenFacts = element("div", "mlx-token-facts");
  #rested = 0;
  #copied = 0;
  #row: RowState;
  #asks: RowAsks;

  constructor(row: RowState, asks: RowAsks) {
    this.#row = row;
    this.#asks = asks;
    this.#tokens.dataset.stop = "button";
    this.#tokens.title =
      "Show the text token by token: shaded by how surprising each was (where log-probabilities were asked for); point at one to see more";
    this.#tokens.setAttribute("aria-pressed", "false");
    this.#tokens.addEventListener("click", () => this.#toggleTokens());
    this.#tokenFacts.setAttribute("role", "status");
    this.#mark.setAttribute("aria-hidden", "true");
    this.#meter.setAttribute("role", "progressbar");
    this.#meter.setAttribute("aria-label", "reading the prompt");
    this.#copy.dataset.stop = "button";
    this.#cancel.dataset.stop = "button";
    this.#text.dataset.stop = "text";
    this.#text.dir = "auto";
    this.#text.append(this.#shown);
    const state = element("span", "mlx-state", this.#mark, this.#word);
    const actions = element("span", "mlx-actions", this.#tokens, this.#copy, this.#cancel);
    const end = element("span", "mlx-end", this.#figures, actions);
    const line = element("div", "mlx-line", state, this.#prompt, end);
    const cell = element(
      "div",
      "mlx-cell",
      line,
      this.#before,
      this.#meter,
      this.#text,
      this.#tokenFacts,
      this.#note,
    );
    this.root = element("div", "mlx-row", cell);
    if (row.id !== undefined) this.#beChoosable(row.id, line, cell);
    this.#cancel.addEventListener("click", () => {
      if (this.#cancel.getAttribute("aria-disabled") !== "true") asks.cancel((answer) => this.tell(answer));
    });
    this.#copy.addEventListener("click", () => void this.#copyNow());
    this.update(row, true);
  }

  /** Show the row as it is now; `live` = somebody could still cancel it. */
  update(row: RowState, live: boolean): void {
    this.#row = row;
    this.root.dataset.status = row.status;
    setText(this.#mark, SIGNS[row.status]);
    setText(this.#word, STATES[row.status]);
    this.#word.title = statusWords(row.status);
    setText(this.#prompt, row.prompt);
    this.#prompt.title = row.prompt;
    setText(this.#figures, figures(row));
    setText(this.#before, prelude(row));
    show(this.#before, prelude(row) !== "");
    this.#updateMeter(row);
    this.#updateText(row.text);
    setText(this.#note, row.note);
    show(this.#note, row.note !== "");
    show(this.#copy, row.text !== "");
    show(this.#cancel, live && !isOver(row.status));
    this.#text.setAttribute("aria-label", `answer to: ${row.prompt}`);
    this.#updateTokens(row);
  }

  /** Shows whether the reader chose the row. */
  choose(on: boolean): void {
    if (this.#row.id !== undefined) this.root.setAttribute("aria-selected", String(on));
  }

  /** The row itself is a stop, its head what a pointer takes: in its text a reader selects words. */
  #beChoosable(id: number, head: HTMLElement, cell: HTMLElement): void {
    const { root } = this;
    root.dataset.stop = "row";
    root.dataset.line = String(id);
    root.setAttribute("role", "row");
    root.setAttribute("aria-label", `row ${id}: ${this.#row.prompt}`);
    cell.setAttribute("role", "gridcell");
    head.title = "Click to choose this row, or to choose it no longer: the view's `selected` has its number";
    head.addEventListener("click", ({ target }) => {
      if (target instanceof Element && target.closest("button")) return;
      if (document.getSelection()?.isCollapsed ?? true) this.#asks.choose();
    });
    root.addEventListener("keydown", (event) => {
      if (event.target !== root || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      this.#asks.choose();
    });
  }

  /** Offer the text token by token, or not. */
  offerTokens(on: boolean): void {
    show(this.#tokens, on && (this.#row.text !== "" || this.#tokenText !== null));
  }

  /** What the kernel knows of a token that was pointed at. */
  tellToken(n: number, facts: TokenFacts | null): void {
    if (this.#tokenText?.cursor === n - 1) setText(this.#tokenFacts, tokenWords(this.#row, n, facts));
  }

  #toggleTokens(): void {
    const on = this.#tokenText === null;
    this.#tokens.setAttribute("aria-pressed", String(on));
    this.#asks.tokens(on);
    if (on) {
      const text = new TokenText(`answer to: ${this.#row.prompt}, token by token`);
      text.colour(true);
      text.onPoint = (token) => {
        clearTimeout(this.#rested);
        text.light(token);
        setText(this.#tokenFacts, token < 0 ? HINT : tokenWords(this.#row, token + 1, null));
        if (token >= 0) this.#rested = window.setTimeout(() => this.#asks.token(token + 1), REST_MS);
      };
      this.#tokenText = text;
      this.#text.after(text.root);
      setText(this.#tokenFacts, HINT);
    } else {
      this.#tokenText?.root.remove();
      this.#tokenText = null;
    }
    this.update(this.#row, !this.#cancel.hidden);
  }

  #updateTokens(row: RowState): void {
    const shown = this.#tokenText !== null;
    show(this.#tokenFacts, shown);
    if (!this.#tokenText) return;
    show(this.#text, false);
    if (row.tokens) this.#tokenText.update(row.tokens);
  }

  /** What became of asking to cancel this row. */
  tell(answer: Answer): void {
    tellOnButton(this.#cancel, answer);
  }

  #updateMeter(row: RowState): void {
    show(this.#meter, row.status === "prefill");
    const percent = row.prompt_tokens ? Math.round((100 * row.prefilled) / row.prompt_tokens) : 0;
    this.#meter.setAttribute("aria-valuenow", String(percent));
    const bar = this.#meter.firstElementChild;
    if (bar instanceof HTMLElement) bar.style.width = `${percent}%`;
  }

  /** Grows the text in place, so that a reader's selection and place survive. */
  #updateText(text: string): void {
    const shown = this.#shown.data;
    show(this.#text, text !== "");
    if (text === shown) return;
    const box = this.#text;
    const follow = box.scrollHeight - box.scrollTop - box.clientHeight < STILL_AT_BOTTOM_PX;
    if (text.startsWith(shown)) this.#shown.appendData(text.slice(shown.length));
    else this.#shown.data = text;
    if (follow) box.scrollTop = box.scrollHeight;
  }

  async #copyNow(): Promise<void> {
    const done = await copyText(this.#row.text, this.root);
    setText(this.#copy, done ? "Copied" : "Not allowed here");
    clearTimeout(this.#copied);
    this.#copied = window.setTimeout(() => setText(this.#copy, "Copy"), COPIED_MS);
  }
}

/** A button that asked says what became of it. It keeps the focus: a focus that falls off gives keys to the notebook. */
export function tellOnButton(asking: HTMLButtonElement, answer: Answer): void {
  if (answer === "silent") {
    asking.removeAttribute("aria-disabled");
    setText(asking, "No answer: use ■ (interrupt)");
    asking.title =
      "The kernel is busy, and here a message reaches it only between cells. Interrupt the kernel (the stop button) to cancel.";
    return;
  }
  asking.setAttribute("aria-disabled", "true");
  asking.title = "";
  setText(asking, "Cancelling…");
}
