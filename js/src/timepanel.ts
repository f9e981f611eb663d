// What the timeline tells of one chosen row: its figures, its text token by token, and why it waited.

import type { Board } from "./board";
import type { TokenFacts, Why } from "./boardwire";
import { answerTokens, BUSY_KERNEL, eachToken, firstToken, latest, number, waited } from "./boardwords";
import { seconds } from "./chart";
import { button, element, setText, show } from "./dom";
import { isOverRow, type Run, type RunRow } from "./run";
import { TokenText } from "./tokentext";
import { cameWords, candidateWords, percent, SIGNS, STATES } from "./words";

/** A pointer rests so long before the kernel is asked about a token. */
const REST_MS = 120;

export class RowPanel {
  readonly root = element("section", "mlx-panel");
  readonly id: number;
  readonly text: TokenText;
  onToken: (row: RunRow, token: number) => void = () => {};
  #board: Board;
  #sign = element("span", "mlx-sign");
  #name = element("b", "");
  #state = element("span", "mlx-dim");
  #figures = element("div", "mlx-dim mlx-panel-figures");
  #token = element("div", "mlx-token-facts");
  #why = element("ul", "mlx-why");
  #whyHead = element("b", "");
  #again = button("mlx-why-again", "Ask again");
  #asked = 0;
  #era = -1;
  #told = "";

  constructor(board: Board, row: RunRow, close: () => void) {
    this.#board = board;
    this.id = row.id;
    this.root.dataset.line = String(row.id);
    this.text = new TokenText(`text of row ${row.id}, token by token`);
    const off = button("mlx-close", "×");
    off.dataset.stop = "button";
    off.setAttribute("aria-label", `close row ${row.id}`);
    off.addEventListener("click", close);
    this.#again.dataset.stop = "button";
    this.#again.title = "Ask the kernel for the reasons as they are now";
    this.#again.addEventListener("click", () => this.askWhy(null));
    this.#token.setAttribute("role", "status");
    const head = element(
      "div",
      "mlx-panel-head",
      this.#sign,
      this.#name,
      this.#state,
      element("span", "mlx-space"),
      off,
    );
    this.#sign.setAttribute("aria-hidden", "true");
    const why = element("div", "mlx-why-head", this.#whyHead, this.#again);
    this.root.append(head, this.#figures, this.text.root, this.#token, why, this.#why);
    this.text.onPoint = (token) => {
      const at = this.#board.run.rows.get(this.id);
      if (at) this.onToken(at, token);
    };
    this.askWhy(null);
  }

  update(row: RunRow): void {
    this.root.dataset.status = row.status;
    setText(this.#sign, SIGNS[row.status]);
    setText(this.#name, `#${row.id} ${row.title}`);
    setText(this.#state, row.note ? `${STATES[row.status]}: ${row.note}` : STATES[row.status]);
    setText(this.#figures, figuresLine(row, latest(this.#board)));
    if (this.#era !== this.#board.era) {
      this.#era = this.#board.era;
      this.text.update({ texts: [], chances: [] });
    }
    this.text.update({ texts: row.texts, chances: row.chances });
    show(this.text.root, row.texts.length > 0);
    show(this.#token, row.texts.length > 0);
    show(this.#again, this.#board.acts);
    const told = `${row.status}${row.waiting}`;
    if (told !== this.#told && this.#told !== "" && (isOverRow(row) || row.status !== "queued"))
      this.askWhy(null);
    this.#told = told;
  }

  /** The text's answer to a column of the chart: its token lights up, brushed ones are marked. */
  light(run: Run, row: RunRow, column: number, brush: [number, number] | null): void {
    this.text.light(column < 0 ? -1 : run.tokenIn(row, column));
    this.text.brush(brush ? tokensBetween(row, brush) : null);
  }

  /** One line about the token that is pointed at. */
  tell(row: RunRow, token: number): void {
    clearTimeout(this.#asked);
    if (token < 0) {
      setText(
        this.#token,
        "Point at a word (or use the arrow keys in the text) to see when and with whom it was made.",
      );
      return;
    }
    const column = row.tokens[token];
    setText(this.#token, tokenLine(this.#board.run, row, token, column, null));
    if (!this.#board.acts) return;
    this.#asked = window.setTimeout(() => {
      this.#board.ask({ do: "token", row: row.id, n: token + 1 }, (state, value) => {
        if (state === "done")
          setText(this.#token, tokenLine(this.#board.run, row, token, column, value as TokenFacts));
      });
    }, REST_MS);
  }

  /** Ask why the row waited: all in all, or at one moment. */
  askWhy(column: number | null): void {
    const { run } = this.#board;
    const at = column === null || column < 0 ? null : run.began(column);
    this.#board.askWhy(this.id, at, (reasons, state, answered) =>
      this.#showWhy(reasons, state, answered === null ? null : column),
    );
  }

  #showWhy(reasons: Why[], state: string, column: number | null): void {
    const { run } = this.#board;
    setText(
      this.#whyHead,
      column === null
        ? `Why did #${this.id} take its time?`
        : `What did #${this.id} do at step ${run.step[column]}?`,
    );
    const words =
      state === "asked"
        ? ["asking…"]
        : state === "silent"
          ? [BUSY_KERNEL]
          : reasons.length
            ? reasons.map((reason) => reason.text)
            : ["Nothing held it up."];
    this.#why.replaceChildren(...words.map((one) => element("li", "", one)));
  }
}

function figuresLine(row: RunRow, now: number): string {
  const parts = [`waited ${waited(row, now)}`];
  if (row.first >= 0) parts.push(`first token after ${firstToken(row)}`);
  const each = eachToken(row, now);
  if (each) parts.push(`${each} a token`);
  parts.push(
    `prompt ${number(row.promptTokens)}${row.cached ? ` (${number(row.cached)} from the cache)` : ""} tokens`,
  );
  parts.push(`answer ${answerTokens(row)} tokens`);
  return parts.join(" · ");
}

/** Tokens of a row in some columns: numbers of the first and the last, or null. */
export function tokensBetween(row: RunRow, [from, to]: [number, number]): [number, number] | null {
  let first = -1;
  let last = -1;
  row.tokens.forEach((column, i) => {
    if (column < from || column > to) return;
    if (first < 0) first = i;
    last = i;
  });
  return first < 0 ? null : [first, last];
}

function tokenLine(
  run: Run,
  row: RunRow,
  token: number,
  column: number | undefined,
  facts: TokenFacts | null,
): string {
  const parts = [`token ${number(token + 1)} of ${number(Math.max(row.generated, row.tokens.length))}`];
  if (typeof facts?.ms === "number") parts.push(cameWords(token + 1, facts.ms));
  if (column !== undefined && column >= 0) {
    parts.push(`its step, ${run.step[column]}, took ${seconds((run.spent[column] ?? 0) / 1e6)}`);
    const mates = run.rowsIn(column).filter((one) => one !== row);
    const names = mates.slice(0, 10).map((one) => `#${one.id}`);
    if (mates.length > 10) names.push(`${mates.length - 10} more`);
    parts.push(mates.length ? `shared with ${names.join(" ")}` : "alone in its step");
  }
  const user = row.user.get(token);
  if (user) parts.push(`${seconds(user / 1e6)} of the step in your own code`);
  const chance = row.chances[token] ?? null;
  if (chance !== null) parts.push(`probability ${percent(chance)}`);
  if (facts?.top.length) parts.push(candidateWords(facts.top));
  return parts.join(" · ");
}
