// The dashboard in one place of the page: figures and controls, places of the batch, rows, legend.

import type { Board } from "./board";
import type { Asked, Figures } from "./boardwire";
import {
  banner,
  bytes,
  cacheShare,
  columnWords,
  latest,
  MEANINGS,
  many,
  number,
  outcome,
} from "./boardwords";
import { drawAxis, drawRow, type Pen, prepare, type Scale, stepScale } from "./chart";
import { DashRow } from "./dashrow";
import { button, element, setText, show } from "./dom";
import { Drawer, Figure, legend, onLook, tableHead } from "./parts";
import { Roving } from "./roving";
import { isOverRow, type RunRow } from "./run";
import type { Choice } from "./wire";
import { isolated, SIGNS, STATES } from "./words";

const GUTTER = 64;
const MOST_ROWS = 200;
/** Figures that change faster than this cannot be read; the chart may move faster. */
const ROWS_MS = 200;
const CHART_MS = 50;
const FEW_PLACES = 4;
const LOAD_HEIGHT = 46;
const AXIS_HEIGHT = 16;
const DELAYS_MS = [0, 200, 500, 1000];
const PAUSED = "Paused: no row moves until you resume, step, or interrupt a cell that waits for a row.";

export class DashView {
  readonly root = element("div", "mlx-board mlx-dash");
  #board: Board;
  #chosen: Choice;
  #title = element("b", "");
  #places = new Figure("", "Places of the batch that are taken: so many rows are computed together");
  #queue = new Figure("", "Requests that wait for a place");
  #rate = new Figure("", "Tokens that all rows together got in a second, over the last seconds");
  #memoryHeld = element("i", "");
  #memoryNeed = element("b", "mlx-need");
  #memoryBar = element("span", "mlx-meter-box", this.#memoryHeld, this.#memoryNeed);
  #memory = new Figure(
    "memory ",
    "KV memory: what the model remembers of each row's tokens, against the budget for it",
    this.#memoryBar,
  );
  #cache = new Figure(
    "prompt cache ",
    "Prompts whose beginning had been read before and was reused, of all prompts that were looked up",
  );
  #pause = button("mlx-pause", "❚❚ Pause");
  #step = button("mlx-step", "Step ▸");
  #pace = element("select", "mlx-pace");
  #ownPace = element("option", "");
  #banner = element("div", "mlx-banner");
  #canvas = element("canvas", "mlx-chart");
  #readout = element("div", "mlx-message mlx-dim");
  #rows = new Map<number, DashRow>();
  #body = element("tbody", "");
  #older = element("div", "mlx-message mlx-dim");
  #message = element("div", "mlx-message");
  #spoken = element("span", "mlx-unseen");
  #roving: Roving;
  #drawer: Drawer;
  #hot = -1;
  #scale: Scale | null = null;

  constructor(board: Board, chosen: Choice, signal: AbortSignal) {
    this.#board = board;
    this.#chosen = chosen;
    this.#make();
    this.#roving = new Roving(this.root, signal);
    this.#drawer = new Drawer(() => this.#drawChart(), signal, CHART_MS);
    const rows = new Drawer(() => this.#drawTable(), signal, ROWS_MS);
    const all = () => {
      this.#drawer.soon();
      rows.soon();
    };
    signal.addEventListener("abort", board.subscribe(all));
    onLook(this.root, all, signal);
    this.draw();
  }

  draw(): void {
    this.#drawTable();
    this.#drawChart();
  }

  #drawTable(): void {
    const focused = this.#roving.focused();
    this.#drawFigures();
    this.#drawRows();
    this.#roving.refresh(focused);
  }

  chosenChanged(): void {
    this.draw();
  }

  #make(): void {
    const { root } = this;
    root.setAttribute("role", "group");
    root.setAttribute("data-lm-suppress-shortcuts", "true");
    for (const ms of DELAYS_MS) {
      const option = element("option", "", paceWords(ms));
      option.value = String(ms);
      this.#pace.append(option);
    }
    this.#pace.dataset.stop = "text";
    this.#pace.setAttribute("aria-label", "speed of the scheduler");
    this.#pace.title = "Slow motion: a rest after each step, to watch what the scheduler does";
    this.#pause.dataset.stop = "button";
    this.#pause.title = "Hold the scheduler after this step: nothing is lost, every row waits";
    this.#step.dataset.stop = "button";
    this.#step.title = "Compute one step (a token for each row that writes), then hold again";
    this.#memoryBar.setAttribute("role", "img");
    this.#canvas.dataset.stop = "cursor";
    this.#canvas.setAttribute("role", "img");
    const controls = element("span", "mlx-controls", this.#pause, this.#step, this.#pace);
    const figures = [this.#places, this.#queue, this.#rate, this.#memory, this.#cache].map(
      (figure) => figure.root,
    );
    const head = element("div", "mlx-bar", this.#title, ...figures, element("span", "mlx-space"), controls);
    this.#banner.setAttribute("role", "status");
    this.#message.setAttribute("role", "status");
    this.#spoken.setAttribute("role", "status");
    const table = element("table", "mlx-table mlx-requests", this.#header(), this.#body);
    root.append(
      head,
      this.#banner,
      this.#canvas,
      this.#readout,
      element("div", "mlx-scroll", table, this.#older),
      this.#message,
      legend(
        [
          ["prefill", "reading a chunk of the prompt"],
          ["decode", "one token"],
          ["idle", "in the batch, not in this step"],
          ["area", "rows in a step"],
          ["dash", "rows waiting"],
          ["meter", "memory: held now, and at most (the line)"],
          ["hot", "the step that you point at"],
        ],
        (Object.keys(SIGNS) as (keyof typeof SIGNS)[]).map((status) => [
          status,
          SIGNS[status],
          STATES[status],
        ]),
      ),
      this.#spoken,
    );
    this.#pause.addEventListener("click", () => {
      const held = this.#board.figures?.paused ?? false;
      this.#act({ do: held ? "resume" : "pause" }, held ? "Resuming" : "Pausing after this step");
    });
    this.#step.addEventListener("click", () => this.#act({ do: "step", steps: 1 }, "One step"));
    this.#pace.addEventListener("change", () => {
      const ms = Number(this.#pace.value);
      this.#act({ do: "pace", ms }, ms ? "Slow motion" : "Full speed");
    });
    this.#watchCanvas();
  }

  #header(): HTMLElement {
    const cells: [string, string, string][] = [
      ["row", "mlx-left", MEANINGS.row],
      ["state", "mlx-left", ""],
      ["prompt, and why", "mlx-wide", "What was asked; below it why the row waits, or how it ended"],
      ["prompt", "mlx-more", "Tokens of the prompt"],
      ["answer", "", MEANINGS.answer],
      ["waited", "mlx-more", MEANINGS.waited],
      ["first", "mlx-more", MEANINGS.first],
      ["each", "mlx-more", MEANINGS.each],
      ["", "mlx-left", ""],
    ];
    return tableHead(cells.map(([words, name, meaning], i) => [words, `${name} mlx-c${i}`, meaning]));
  }

  #act(asked: Asked, words: string, row = 0): void {
    this.#board.ask(asked, (state, value, error) => {
      setText(this.#message, outcome(state, value, error, words));
      show(this.#message, true);
      this.#rows.get(row)?.told(asked.do, state);
    });
  }

  #drawFigures(): void {
    const { figures, title, lost, acts } = this.#board;
    this.root.setAttribute("aria-label", `Scheduler of ${title}`);
    setText(this.#title, title);
    for (const control of [this.#pause, this.#step, this.#pace]) show(control, acts);
    this.root.toggleAttribute("data-mute", !acts);
    show(this.#message, this.#message.textContent !== "");
    const paused = figures?.paused ?? false;
    setText(this.#pause, paused ? "▶ Resume" : "❚❚ Pause");
    this.#pause.setAttribute("aria-pressed", String(paused));
    if (document.activeElement !== this.#pace) this.#showPace(figures?.delay_ms ?? 0);
    const words = banner(this.#board, PAUSED);
    setText(this.#banner, words);
    show(this.#banner, words !== "");
    if (!figures) return;
    const taken = (figures.active ?? 0) + (figures.prefill ?? 0);
    this.#places.set(
      String(taken),
      figures.places ? ` of ${many(figures.places, "place")}` : " places taken",
    );
    this.#queue.set(number(figures.queued ?? 0), " waiting");
    const rate = figures.tokens_per_s ?? 0;
    this.#rate.set(rate < 10 ? rate.toFixed(1) : number(Math.round(rate)), " tokens/s");
    this.#drawMemory(figures);
    this.#cache.set(
      cacheShare(figures),
      figures.cache_tokens_reused ? `, ${number(figures.cache_tokens_reused)} tokens reused` : "",
    );
    setText(
      this.#spoken,
      `${many(taken, "row")} in the batch, ${figures.queued} waiting${paused ? ", paused" : ""}${lost ? words : ""}`,
    );
  }

  #drawMemory({ kv_bytes, kv_projected_bytes, kv_budget_bytes: budget }: Figures): void {
    const [held, need] = [kv_bytes ?? 0, kv_projected_bytes ?? 0];
    this.#memory.set(bytes(held), budget ? ` of ${bytes(budget)}` : " (no budget)");
    show(this.#memoryBar, Boolean(budget));
    if (!budget) return;
    const share = (part: number) => `${Math.min(100, (100 * part) / budget).toFixed(1)}%`;
    this.#memoryHeld.style.width = share(held);
    this.#memoryNeed.style.left = share(need);
    const words = `filled: ${bytes(held)} are held now; line: ${bytes(need)} are what the running rows take at most, up to their limits; a row gets a place if its own most fits with that in ${bytes(budget)}`;
    if (this.#memoryBar.title === words) return;
    this.#memoryBar.title = words;
    this.#memoryBar.setAttribute("aria-label", words);
  }

  /** A pace that was set from Python may be none of those offered: it gets a line of its own while it holds. */
  #showPace(ms: number): void {
    const offered = DELAYS_MS.includes(ms);
    if (offered) this.#ownPace.remove();
    else {
      this.#ownPace.value = String(ms);
      setText(this.#ownPace, paceWords(ms));
      if (!this.#ownPace.parentElement) this.#pace.append(this.#ownPace);
    }
    this.#pace.value = String(ms);
  }

  #drawRows(): void {
    const { run } = this.#board;
    const ids = [...run.rows.keys()];
    const shown = new Set(ids.slice(-MOST_ROWS));
    for (const row of run.rows.values()) if (!isOverRow(row)) shown.add(row.id);
    for (const [id, row] of this.#rows) {
      if (shown.has(id)) continue;
      row.root.remove();
      this.#rows.delete(id);
    }
    const now = latest(this.#board);
    const chosen = this.#chosen.get();
    for (const id of ids) {
      if (!shown.has(id)) continue;
      let line = this.#rows.get(id);
      if (!line) {
        line = new DashRow(
          id,
          (asked, words) => this.#act(asked, words, id),
          () => this.#choose(id),
        );
        this.#rows.set(id, line);
        this.#body.prepend(line.root);
      }
      line.update(this.#board, run.rows.get(id) as RunRow, now, chosen.includes(id));
    }
    const hidden = ids.length - shown.size;
    setText(
      this.#older,
      !ids.length
        ? "No requests yet. Those that you submit appear here."
        : hidden > 0
          ? `${number(hidden)} older rows are not listed`
          : "",
    );
    show(this.#older, this.#older.textContent !== "");
  }

  #choose(id: number): void {
    this.#chosen.set(this.#chosen.get().includes(id) ? [] : [id]);
    this.draw();
  }

  #drawChart(): void {
    const { run, figures } = this.#board;
    const width = this.root.clientWidth || 600;
    // Places that nobody has taken yet would only push the rows off the screen; the head says how many there are.
    const used = Math.max(1, ...[...run.rows.values()].map((row) => row.slot + 1));
    const lanes = Math.min(64, Math.max(used, Math.min(figures?.places ?? 1, FEW_PLACES)));
    const pitch = lanes <= 8 ? 27 : lanes <= 16 ? 15 : lanes <= 32 ? 10 : 7;
    const height = 6 + lanes * pitch + 8 + LOAD_HEIGHT + AXIS_HEIGHT;
    const pen = prepare(this.#canvas, width, height, this.root);
    const narrowest = width < 500 ? 7 : 9;
    const column = Math.min(18, Math.max(narrowest, (width - GUTTER - 14) / Math.max(1, run.columns)));
    const fit = Math.floor((width - GUTTER - 14) / column);
    const from = Math.max(0, run.columns - fit);
    const scale = stepScale(GUTTER, from, column);
    this.#scale = scale;
    this.#canvas.setAttribute(
      "aria-label",
      `Places of the batch over the last ${many(Math.min(fit, run.columns), "column")}. ${columnWords(this.#board, run.columns - 1)}`,
    );
    const hot = this.#hot >= 0 ? this.#hot : run.columns - 1;
    setText(this.#readout, columnWords(this.#board, hot));
    show(this.#readout, run.columns > 0);
    if (!pen) return;
    const right = width - 10;
    this.#drawHot(pen, scale, height);
    this.#drawLanes(pen, scale, lanes, pitch, right);
    this.#drawLoad(pen, scale, 6 + lanes * pitch + 8, from, right, lanes);
    drawAxis(pen, run, scale, height - 4, GUTTER, right, false);
  }

  #drawHot(pen: Pen, scale: Scale, height: number): void {
    if (this.#hot < 0) return;
    pen.g.globalAlpha = 0.5;
    pen.g.fillStyle = pen.colours.hot;
    pen.g.fillRect(scale.left(this.#hot) - 1, 0, scale.right(this.#hot) - scale.left(this.#hot) + 1, height);
    pen.g.globalAlpha = 1;
  }

  #drawLanes(pen: Pen, scale: Scale, lanes: number, pitch: number, right: number): void {
    const { run } = this.#board;
    const chosen = this.#chosen.get();
    // Where there is room, a line for the rows' numbers stands above each place.
    const above = pitch > 20 ? 10 : 0;
    const h = pitch - above - (pitch > 12 ? 4 : 2);
    for (let lane = 0; lane < lanes; lane++) {
      const y = 6 + lane * pitch + above;
      if (pitch > 12 || lane % 8 === 0)
        pen.text(`place ${lane + 1}`, 12, y + Math.min(h, 11), pen.colours.dim);
      pen.g.fillStyle = pen.colours.line;
      pen.g.fillRect(GUTTER, y + h + 1, right - GUTTER, 1);
    }
    for (const row of run.rows.values()) {
      if (row.slot < 0 || row.slot >= lanes || row.admit < 0) continue;
      const begin = Math.max(GUTTER, scale.left(run.columnAfter(row.admit)));
      const end = row.end >= 0 ? scale.left(run.columnAfter(row.end)) : scale.left(run.columns);
      if (begin > right || end + 12 < GUTTER) continue;
      const y = 6 + row.slot * pitch + above;
      drawRow(pen, run, row, scale, y, h, begin, right, chosen.length > 0 && !chosen.includes(row.id));
      if (!above || end - begin < 12) continue;
      const bold = chosen.includes(row.id);
      const name =
        end - begin > 90 && row.title ? `#${row.id} ${isolated(row.title.slice(0, 80))}` : `#${row.id}`;
      pen.text(
        pen.fitted(name, Math.max(20, end - begin - 8), bold),
        begin,
        y - 2,
        bold ? pen.colours.fg : pen.colours.dim,
        bold,
      );
    }
  }

  #drawLoad(pen: Pen, scale: Scale, y: number, from: number, right: number, places: number): void {
    const { run } = this.#board;
    const { g, colours } = pen;
    let most = places;
    for (let c = from; c < run.columns; c++) most = Math.max(most, run.queued[c] ?? 0);
    const base = y + LOAD_HEIGHT - 4;
    const unit = (LOAD_HEIGHT - 8) / most;
    pen.text("load", 12, y + 12, colours.dim);
    pen.text(`${most}`, GUTTER - 8 - 7 * `${most}`.length, y + 12, colours.dim);
    pen.text("0", GUTTER - 15, base, colours.dim);
    g.fillStyle = colours.decode;
    g.globalAlpha = 0.35;
    for (let c = from; c < run.columns && scale.right(c) <= right; c++) {
      const tall = (run.inStep[c] ?? 0) * unit;
      g.fillRect(scale.left(c), base - tall, scale.right(c) - scale.left(c), tall);
    }
    g.globalAlpha = 1;
    g.strokeStyle = colours.queued;
    g.lineWidth = 1.5;
    g.setLineDash([4, 3]);
    g.beginPath();
    for (let c = from; c < run.columns && scale.right(c) <= right; c++) {
      const top = base - (run.queued[c] ?? 0) * unit;
      g.lineTo(scale.left(c), top);
      g.lineTo(scale.right(c), top);
    }
    g.stroke();
    g.setLineDash([]);
  }

  #watchCanvas(): void {
    const point = (column: number) => {
      this.#hot = column;
      this.#drawer.soon();
    };
    this.#canvas.addEventListener("pointermove", (event) => {
      const column = Math.floor(this.#scale?.column(event.offsetX) ?? -1);
      point(column >= 0 && column < this.#board.run.columns ? column : -1);
    });
    this.#canvas.addEventListener("pointerleave", () => point(-1));
    this.#canvas.addEventListener("blur", () => point(-1));
    this.#canvas.addEventListener("keydown", (event) => {
      const last = this.#board.run.columns - 1;
      const here = this.#hot >= 0 ? this.#hot : last;
      const first = Math.max(0, Math.ceil(this.#scale?.column(GUTTER) ?? 0));
      const to = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: first, End: last }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      point(Math.max(first, Math.min(last, to)));
    });
    this.#canvas.title = "Point at a column to see which step it was; left and right arrow keys do the same";
  }
}

function paceWords(ms: number): string {
  return ms ? `slow motion: ${ms / 1000} s a step` : "full speed";
}
