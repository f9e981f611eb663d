// The timeline in one place of the page: chart, readout, chosen rows with their text, a table of rows, legend.

import type { Board } from "./board";
import type { Choices } from "./boardwidget";
import {
  answerTokens,
  banner,
  columnWords,
  eachToken,
  firstToken,
  latest,
  MEANINGS,
  many,
  number,
  waited,
} from "./boardwords";
import { button, element, setText, show } from "./dom";
import { Cell, Drawer, legend, onLook, tableHead } from "./parts";
import { Roving } from "./roving";
import type { RunRow } from "./run";
import { BESIDE, CHOSEN, TimeCanvas } from "./timecanvas";
import { RowPanel } from "./timepanel";
import { SIGNS, STATES } from "./words";

const MOST_ROWS = 500;

export class TimeView {
  readonly root = element("div", "mlx-board mlx-timeline");
  #board: Board;
  #chosen: Choices;
  #title = element("b", "");
  #count = element("span", "mlx-dim mlx-num");
  #steps = button("mlx-by-step", "Steps");
  #time = button("mlx-by-time", "Time");
  #filter = element("input", "mlx-filter");
  #state = element("select", "mlx-state-filter");
  #banner = element("div", "mlx-banner");
  #readout = element("div", "mlx-message mlx-readout");
  #clear = button("mlx-clear", "Clear the marked steps");
  #panels = element("div", "mlx-panels");
  #compare = element("div", "mlx-compare");
  #table = element("details", "mlx-rows-table");
  #body = element("tbody", "");
  #lines = new Map<number, TableLine>();
  #chart: TimeCanvas;
  #open = new Map<number, RowPanel>();
  #roving: Roving;
  #drawer: Drawer;
  #hot = -1;
  #hotRow: RunRow | null = null;
  /** Marked columns; the steps that they stand for, and of which history the columns are. */
  #brush: [number, number] | null = null;
  #brushed = "";
  /** Rows that the filters let through and that are too many to draw. */
  #hidden = 0;
  #era = -1;
  #compared = "";

  constructor(board: Board, chosen: Choices, signal: AbortSignal) {
    this.#board = board;
    this.#chosen = chosen;
    this.#chart = new TimeCanvas(board, {
      point: (column, row) => this.#point(column, row),
      pick: (row, beside, column) => this.#pick(row.id, beside, column),
      brush: (range) => this.#setBrush(range),
      moved: () => this.#drawer.soon(),
    });
    this.#make();
    this.#roving = new Roving(this.root, signal);
    this.#drawer = new Drawer(() => this.draw(), signal, 30);
    signal.addEventListener(
      "abort",
      board.subscribe(() => this.#drawer.soon()),
    );
    onLook(this.root, () => this.#drawer.soon(), signal);
    this.draw();
  }

  chosenChanged(): void {
    this.#drawer.soon();
  }

  draw(): void {
    const focused = this.#roving.focused();
    const { run, title } = this.#board;
    const rows = this.#filtered();
    this.#followBrush();
    const chosen = this.#chosen.get().filter((id) => run.rows.has(id));
    this.root.setAttribute("aria-label", `Timeline of ${title}`);
    setText(this.#title, title);
    const passed = rows.length + this.#hidden;
    const all = many(run.rows.size, "request");
    setText(
      this.#count,
      `${passed < run.rows.size ? `${number(passed)} of ${all}` : all}, ${many(run.columns ? this.#lastStep() : 0, "step")}${
        this.#hidden ? `; ${many(this.#hidden, "older row")} not drawn: filter to see them` : ""
      }`,
    );
    setText(this.#banner, banner(this.#board, "Paused: no row moves until somebody resumes."));
    show(this.#banner, this.#banner.textContent !== "");
    this.#chart.rows = rows;
    this.#chart.chosen = chosen;
    this.#chart.hot = this.#hot;
    this.#chart.brush = this.#brush;
    this.#chart.canvas.setAttribute("aria-label", this.#chartWords(rows));
    this.#chart.draw(this.root);
    setText(this.#readout, this.#readoutWords(rows));
    show(this.#clear, this.#brush !== null);
    this.#drawPanels(chosen);
    if (this.#table.open) this.#drawTable(rows, chosen);
    this.#roving.refresh(focused);
  }

  #make(): void {
    const { root } = this;
    root.setAttribute("role", "group");
    root.setAttribute("data-lm-suppress-shortcuts", "true");
    const zooms = [
      this.#button("−", "zoom out", () => this.#chart.zoom(1 / 1.6)),
      this.#button("+", "zoom in", () => this.#chart.zoom(1.6)),
      this.#button("◂", "earlier", () => this.#chart.pan(-0.5)),
      this.#button("▸", "later", () => this.#chart.pan(0.5)),
      this.#button("All", "show the whole run", () => this.#chart.fit()),
    ];
    for (const [one, time, meaning] of [
      [this.#steps, false, "Every step as wide as another; a chunk of a prompt has a column of its own"],
      [this.#time, true, "Steps as wide as they took"],
    ] as const) {
      one.dataset.stop = "button";
      one.title = meaning;
      one.setAttribute("aria-pressed", String(!time));
      one.addEventListener("click", () => {
        this.#chart.setTimeMode(time);
        this.#steps.setAttribute("aria-pressed", String(!time));
        this.#time.setAttribute("aria-pressed", String(time));
        this.#drawer.soon();
      });
    }
    this.#filter.type = "search";
    this.#filter.placeholder = "words or #number";
    this.#filter.setAttribute(
      "aria-label",
      "show only rows whose prompt has these words, or whose number is this",
    );
    this.#filter.dataset.stop = "cursor";
    this.#filter.addEventListener("input", () => this.#drawer.soon());
    for (const [value, words] of [["", "every state"], ...Object.entries(STATES)] as [string, string][]) {
      const option = element("option", "", words);
      option.value = value;
      this.#state.append(option);
    }
    this.#state.dataset.stop = "text";
    this.#state.setAttribute("aria-label", "show only rows in this state");
    this.#state.addEventListener("change", () => this.#drawer.soon());
    this.#clear.dataset.stop = "button";
    this.#clear.addEventListener("click", () => this.#setBrush(null));
    this.#readout.setAttribute("role", "status");
    const controls = element("span", "mlx-controls", this.#steps, this.#time, ...zooms);
    const filters = element("span", "mlx-controls", this.#filter, this.#state);
    this.#makeTable();
    root.append(
      element("div", "mlx-bar", this.#title, this.#count, element("span", "mlx-space"), filters, controls),
      this.#banner,
      this.#chart.root,
      element("div", "mlx-read", this.#readout, this.#clear),
      this.#panels,
      this.#compare,
      this.#table,
      legend(
        [
          ["queued", "waiting for a place"],
          ["prefill", "reading a chunk of the prompt"],
          ["decode", "one token"],
          ["idle", "in the batch, not in this step"],
          ["hot", "the step that you point at"],
          ["brushed", "steps that you marked"],
        ],
        [
          ...(["finished", "cancelled", "failed"] as const).map((status): [string, string, string] => [
            status,
            SIGNS[status],
            STATES[status],
          ]),
          ["", CHOSEN, "the row that you read"],
          ["", BESIDE, "the one compared with it"],
        ],
      ),
    );
  }

  #button(sign: string, label: string, act: () => void): HTMLButtonElement {
    const made = button("mlx-zoom", sign);
    made.dataset.stop = "button";
    made.title = label;
    made.setAttribute("aria-label", label);
    made.addEventListener("click", act);
    return made;
  }

  #makeTable(): void {
    const summary = element("summary", "", "Rows as a table");
    summary.dataset.stop = "button";
    const head = tableHead([
      ["row", "mlx-left", MEANINGS.row],
      ["state", "mlx-left", ""],
      ["prompt", "mlx-wide", ""],
      ["answer", "", MEANINGS.answer],
      ["waited", "", MEANINGS.waited],
      ["first", "mlx-more", MEANINGS.first],
      ["each", "mlx-more", MEANINGS.each],
    ]);
    const table = element("table", "mlx-table", head, this.#body);
    this.#table.append(summary, element("div", "mlx-scroll", table));
    this.#table.addEventListener("toggle", () => this.#drawer.soon());
  }

  #filtered(): RunRow[] {
    const words = this.#filter.value.trim().toLowerCase();
    const state = this.#state.value;
    const rows = [...this.#board.run.rows.values()].filter(
      (row) =>
        row.submit >= 0 &&
        (!state || row.status === state) &&
        (!words || `#${row.id}` === words || row.title.toLowerCase().includes(words)),
    );
    rows.sort((a, b) => a.id - b.id);
    this.#hidden = Math.max(0, rows.length - MOST_ROWS);
    return rows.slice(-MOST_ROWS);
  }

  #lastStep(): number {
    const { run } = this.#board;
    for (let c = run.columns - 1; c >= 0; c--) if (run.decode[c]) return run.step[c] as number;
    return 0;
  }

  #chartWords(rows: RunRow[]): string {
    const brush = this.#brush;
    const marked = brush ? ` Steps ${this.#stepOf(brush[0])} to ${this.#stepOf(brush[1])} are marked.` : "";
    return `Rows by step: ${many(rows.length, "row")}. Left and right arrows go from step to step, with Shift they mark steps; Enter asks what the chosen row did at the step.${marked}`;
  }

  #stepOf(column: number): number {
    return this.#board.run.step[column] ?? 0;
  }

  #readoutWords(rows: RunRow[]): string {
    if (!this.#board.run.columns) return rows.length ? "Nothing was computed yet." : "No requests yet.";
    if (this.#hot >= 0) {
      const row = this.#hotRow;
      const own = row ? ` · row #${row.id}: ${this.#doingAt(row, this.#hot)}` : "";
      return columnWords(this.#board, this.#hot) + own;
    }
    if (this.#brush) {
      const { run } = this.#board;
      const [a, b] = this.#brush;
      let tokens = 0;
      for (let c = a; c <= b; c++) if (run.decode[c]) tokens += run.inStep[c] ?? 0;
      return `steps ${this.#stepOf(a)} to ${this.#stepOf(b)} are marked: ${number(tokens)} tokens of all rows`;
    }
    return "Point at a column to see its step. Click a row to read it, a second one (with Shift) to compare; drag to mark steps.";
  }

  #doingAt(row: RunRow, column: number): string {
    const { run } = this.#board;
    const token = run.tokenIn(row, column);
    if (token >= 0) return `token ${token + 1}`;
    const chunk = run.chunkIn(row, column);
    if (chunk) return `reads prompt tokens ${number(chunk.start)} to ${number(chunk.stop)}`;
    const began = run.began(column);
    if (row.submit > (run.at[column] ?? 0)) return "not submitted yet";
    if (row.end >= 0 && row.end <= began) return STATES[row.status];
    if (row.admit < 0 || row.admit > began) return "waiting (click to ask why)";
    return "in the batch, not in this step";
  }

  #point(column: number, row: RunRow | null): void {
    if (column === this.#hot && row === this.#hotRow) return;
    this.#hot = column;
    this.#hotRow = row;
    this.#drawer.soon();
  }

  #pick(id: number, beside: boolean, column: number): void {
    const before = this.#chosen.get();
    const first = before[0];
    if (beside && first !== undefined && first !== id) this.#chosen.set([first, id]);
    else if (before.includes(id) && column < 0) this.#chosen.set(before.filter((one) => one !== id));
    else if (!before.includes(id)) this.#chosen.set([id]);
    this.draw();
    const row = this.#board.run.rows.get(id);
    if (row && column >= 0) this.#open.get(id)?.askWhy(this.#waits(row, column) ? column : null);
  }

  #waits(row: RunRow, column: number): boolean {
    const began = this.#board.run.began(column);
    return row.submit <= began && (row.admit < 0 || row.admit >= began);
  }

  #setBrush(range: [number, number] | null): void {
    const steps = range ? [this.#stepOf(range[0]), this.#stepOf(range[1])] : [];
    this.#brush = range;
    this.#brushed = steps.join();
    this.#chosen.brush(steps);
    this.#drawer.soon();
  }

  /** Steps may be marked elsewhere too (in Python, in another place of the page), and a new history has other columns. */
  #followBrush(): void {
    const steps = this.#chosen.brushed();
    if (steps.join() === this.#brushed && this.#board.era === this.#era) return;
    this.#brushed = steps.join();
    this.#era = this.#board.era;
    this.#brush = this.#board.run.columnsOfSteps(steps[0], steps[1]);
  }

  #drawPanels(chosen: number[]): void {
    const { run } = this.#board;
    for (const [id, panel] of this.#open) {
      if (chosen.includes(id)) continue;
      panel.root.remove();
      this.#open.delete(id);
    }
    for (const id of chosen) {
      const row = run.rows.get(id) as RunRow;
      let panel = this.#open.get(id);
      if (!panel) {
        panel = new RowPanel(this.#board, row, () => {
          this.#chosen.set(this.#chosen.get().filter((one) => one !== id));
          this.draw();
          this.#chart.canvas.focus();
        });
        panel.onToken = (at, token) => {
          panel?.tell(at, token);
          this.#point(at.tokens[token] ?? -1, at);
          if (token >= 0) this.#chart.reveal(at.tokens[token] ?? 0);
        };
        panel.tell(row, -1);
        this.#open.set(id, panel);
        this.#panels.append(panel.root);
      }
      panel.update(row);
      panel.light(run, row, this.#hot, this.#brush);
    }
    this.#panels.classList.toggle("mlx-two", chosen.length > 1);
    this.#drawCompare(chosen.map((id) => run.rows.get(id) as RunRow));
  }

  /** Two rows beside each other. */
  #drawCompare([a, b]: RunRow[]): void {
    show(this.#compare, b !== undefined);
    if (!a || !b) return;
    const now = latest(this.#board);
    const steps = new Set(a.tokens);
    const shared = b.tokens.filter((column) => steps.has(column)).length;
    const lines: [string, string, string][] = [
      ["compared", `#${a.id}`, `#${b.id}`],
      ["waited", waited(a, now), waited(b, now)],
      ["first token after", firstToken(a) || "–", firstToken(b) || "–"],
      ["each token", eachToken(a, now) || "–", eachToken(b, now) || "–"],
      ["prompt from the cache", cachedOf(a), cachedOf(b)],
      ["steps that both were in", String(shared), String(shared)],
    ];
    const words = lines.map((line) => line.join("\t")).join("\n");
    if (words === this.#compared) return;
    this.#compared = words;
    const rows = lines.map(([what, one, other], i) => {
      const name = element("th", "mlx-left", what);
      name.scope = i ? "row" : "col";
      return element("tr", "", name, element(i ? "td" : "th", "", one), element(i ? "td" : "th", "", other));
    });
    this.#compare.replaceChildren(
      element("table", "mlx-table mlx-compare-table", element("tbody", "", ...rows)),
    );
  }

  #drawTable(rows: RunRow[], chosen: number[]): void {
    const now = latest(this.#board);
    const shown = new Set(rows.map((row) => row.id));
    for (const [id, line] of this.#lines) {
      if (shown.has(id)) continue;
      line.root.remove();
      this.#lines.delete(id);
    }
    let next = this.#body.firstElementChild;
    for (const row of rows) {
      let line = this.#lines.get(row.id);
      if (!line) {
        line = new TableLine(row.id, (beside) => this.#pick(row.id, beside, -1));
        this.#lines.set(row.id, line);
      }
      // In the rows' order, also those that a filter had taken away; a line in its place is not moved: it may have the focus.
      if (line.root === next) next = next.nextElementSibling;
      else this.#body.insertBefore(line.root, next);
      line.update(row, now, chosen.includes(row.id));
    }
  }
}

function cachedOf(row: RunRow): string {
  return `${number(row.cached)} of ${number(row.promptTokens)}`;
}

class TableLine {
  readonly root = element("tr", "");
  #pick: HTMLButtonElement;
  #sign = element("span", "mlx-sign");
  #word = element("span", "");
  #title = new Cell("mlx-wide");
  #answer = new Cell("");
  #waited = new Cell("");
  #first = new Cell("mlx-more");
  #each = new Cell("mlx-more");

  constructor(id: number, pick: (beside: boolean) => void) {
    this.#pick = button("mlx-pick", `#${id}`);
    this.#pick.dataset.stop = "button";
    this.#pick.setAttribute("aria-label", `read row ${id}; with Shift: compare it with the chosen one`);
    this.#pick.addEventListener("click", (event) => pick(event.shiftKey));
    this.#sign.setAttribute("aria-hidden", "true");
    this.root.dataset.line = String(id);
    const cells = [this.#title, this.#answer, this.#waited, this.#first, this.#each].map((cell) => cell.root);
    this.root.append(
      element("td", "mlx-left", this.#pick),
      element("td", "mlx-left", this.#sign, this.#word),
      ...cells,
    );
  }

  update(row: RunRow, now: number, chosen: boolean): void {
    this.root.dataset.status = row.status;
    setText(this.#sign, SIGNS[row.status]);
    setText(this.#word, STATES[row.status]);
    this.#title.set(row.title);
    this.#answer.set(answerTokens(row));
    this.#waited.set(waited(row, now));
    this.#first.set(firstToken(row));
    this.#each.set(eachToken(row, now));
    this.#pick.setAttribute("aria-pressed", String(chosen));
    if (chosen) this.root.setAttribute("aria-selected", "true");
    else this.root.removeAttribute("aria-selected");
  }
}
