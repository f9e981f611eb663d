// One request's line in the dashboard's table: its figures, why it waits, and what can be done to it.

import type { AskState, Board } from "./board";
import type { Asked } from "./boardwire";
import { answerTokens, doing, eachToken, firstToken, number, waited } from "./boardwords";
import { button, element, setText, show } from "./dom";
import { Cell } from "./parts";
import { isOverRow, type RunRow } from "./run";
import { SIGNS, STATES, statusWords } from "./words";

export const MORE_TOKENS = 64;

type Act = (asked: Asked, words: string) => void;

export class DashRow {
  readonly root = element("tr", "mlx-request");
  #pick: HTMLButtonElement;
  #sign = element("span", "mlx-sign");
  #word = element("span", "");
  #prompt = element("span", "");
  #why = element("span", "mlx-why-line");
  #wide = element("td", "mlx-wide", this.#prompt, this.#why);
  #promptTokens = new Cell("mlx-more");
  #answer = new Cell("");
  #waited = new Cell("mlx-more");
  #first = new Cell("mlx-more");
  #each = new Cell("mlx-more");
  #cancel = button("mlx-cancel", "Cancel");
  #sooner = button("mlx-sooner", "Sooner");
  #extend = button("mlx-extend", `+${MORE_TOKENS}`);
  #priority = 0;
  #status = "";

  constructor(id: number, act: Act, choose: () => void) {
    this.#pick = button("mlx-pick", `#${id}`);
    this.#pick.title = "Select this row: it stands out in the chart";
    this.#sooner.title = "Raise its priority by one: it gets a place before rows of a lower priority";
    this.#extend.title = `Let the answer grow by ${MORE_TOKENS} tokens more than its limit`;
    this.#cancel.title = "End this row now; its text so far is kept";
    this.root.dataset.line = String(id);
    this.#sign.setAttribute("aria-hidden", "true");
    const buttons: [HTMLButtonElement, string][] = [
      [this.#pick, `select row ${id}`],
      [this.#cancel, `cancel row ${id}`],
      [this.#sooner, `raise the priority of row ${id}`],
      [this.#extend, `let row ${id} write ${MORE_TOKENS} tokens more`],
    ];
    for (const [one, label] of buttons) {
      one.dataset.stop = "button";
      one.setAttribute("aria-label", label);
    }
    this.root.append(
      element("td", "mlx-left", this.#pick),
      element("td", "mlx-left", this.#sign, this.#word),
      this.#wide,
      this.#promptTokens.root,
      this.#answer.root,
      this.#waited.root,
      this.#first.root,
      this.#each.root,
      element("td", "mlx-left", element("span", "mlx-controls", this.#cancel, this.#sooner, this.#extend)),
    );
    this.#pick.addEventListener("click", choose);
    this.#cancel.addEventListener("click", () => {
      if (this.#cancel.getAttribute("aria-disabled") !== "true")
        act({ do: "cancel", rows: [id] }, `Cancelling row ${id}`);
    });
    this.#sooner.addEventListener("click", () => {
      this.#priority += 1;
      act({ do: "reprioritize", row: id, priority: this.#priority }, `Raising the priority of row ${id}`);
    });
    this.#extend.addEventListener("click", () =>
      act({ do: "extend", row: id, tokens: MORE_TOKENS }, `Extending row ${id}`),
    );
  }

  update(board: Board, row: RunRow, now: number, chosen: boolean): void {
    const over = isOverRow(row);
    if (row.status !== this.#status) {
      this.#status = row.status;
      this.root.dataset.status = row.status;
      this.#sign.textContent = SIGNS[row.status];
      this.#word.textContent = STATES[row.status];
      this.#word.title = statusWords(row.status);
    }
    this.#priority = row.priority;
    setText(this.#prompt, row.title);
    this.#prompt.title = row.title;
    const words = doing(row);
    setText(this.#why, words);
    this.#why.title = words;
    show(this.#why, words !== "");
    this.#promptTokens.set(number(row.promptTokens));
    this.#answer.set(answerTokens(row));
    this.#waited.set(waited(row, now));
    this.#first.set(firstToken(row));
    this.#each.set(eachToken(row, now));
    const acts = !over && board.acts;
    show(this.#cancel, acts);
    show(this.#sooner, acts && row.status === "queued");
    show(this.#extend, acts && row.status !== "queued");
    this.#pick.setAttribute("aria-pressed", String(chosen));
    if (chosen) this.root.setAttribute("aria-selected", "true");
    else this.root.removeAttribute("aria-selected");
  }

  /** What became of an action on this row. */
  told(action: Asked["do"], state: AskState): void {
    if (action !== "cancel") return;
    const asked = state === "asked" || state === "done";
    setText(this.#cancel, asked ? "Cancelling…" : "Cancel");
    if (asked) this.#cancel.setAttribute("aria-disabled", "true");
    else this.#cancel.removeAttribute("aria-disabled");
  }
}
