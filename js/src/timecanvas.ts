// The timeline's chart: rows down, steps (or time) across; zoom, pan, brush, point. Thousands of steps draw as
// stretches, so that its cost follows what is on the screen and not the length of the run.

import type { Board } from "./board";
import {
  type Colours,
  drawAxis,
  drawRow,
  type Pen,
  prepare,
  type Scale,
  stepScale,
  timeScale,
} from "./chart";
import { element } from "./dom";
import type { RunRow } from "./run";
import { isolated } from "./words";

const PITCH = 19;
const BAR = 13;
const TOP = 6;
const AXIS = 18;
const WIDEST = 18;
const MOST_SHOWN = 18;
const DRAG_PX = 4;

/** Marks before the names of the row that is read, and of the one beside it. */
export const CHOSEN = "▸";
export const BESIDE = "▹";

export interface ChartHears {
  /** The column and row under the pointer or cursor; -1 and null for none. */
  point(column: number, row: RunRow | null): void;
  pick(row: RunRow, beside: boolean, column: number): void;
  brush(range: [number, number] | null): void;
  /** The chart moved: draw it again. */
  moved(): void;
}

export class TimeCanvas {
  readonly root = element("div", "mlx-time-scroll");
  readonly canvas = element("canvas", "mlx-chart");
  rows: RunRow[] = [];
  chosen: number[] = [];
  hot = -1;
  brush: [number, number] | null = null;
  #board: Board;
  #hears: ChartHears;
  #inner = element("div", "mlx-time-inner");
  #timeMode = false;
  /** Leftmost column (or microsecond), and pixels a column (or microsecond); 0 = as much as fits. */
  #from = 0;
  #unit = 0;
  #width = 600;
  #gutter = 160;
  #scale: Scale = stepScale(0, 0, 1);
  #drag: { x: number; column: number; moved: boolean } | null = null;

  constructor(board: Board, hears: ChartHears) {
    this.#board = board;
    this.#hears = hears;
    this.canvas.dataset.stop = "cursor";
    this.canvas.setAttribute("role", "img");
    this.canvas.title =
      "Point at a column to see its step; click a row to read it; drag to mark steps; Enter asks what the chosen row did at the step; Ctrl and wheel, + and − zoom, 0 shows all";
    this.#inner.append(this.canvas);
    this.root.append(this.#inner);
    this.root.addEventListener("scroll", () => this.#hears.moved());
    this.#listen();
  }

  get timeMode(): boolean {
    return this.#timeMode;
  }

  setTimeMode(on: boolean): void {
    if (on === this.#timeMode) return;
    this.#timeMode = on;
    this.fit();
  }

  fit(): void {
    this.#unit = 0;
    this.#from = 0;
    this.#hears.moved();
  }

  zoom(factor: number, x = this.#gutter + (this.#width - this.#gutter) / 2): void {
    const before = this.#position(x);
    const least = this.#fitting();
    const most = this.#timeMode ? 0.5 : 40;
    const unit = Math.min(most, (this.#unit || least) * factor);
    this.#unit = unit <= least ? 0 : unit;
    this.#from = this.#unit ? before - (x - this.#gutter) / this.#unit : 0;
    this.#hears.moved();
  }

  /** Moves by a share of what is seen. */
  pan(share: number): void {
    if (!this.#unit) return;
    this.#from += (share * (this.#width - this.#gutter)) / this.#unit;
    this.#hears.moved();
  }

  /** Brings a column into view. */
  reveal(column: number): void {
    const x = this.#scale.left(column);
    if (this.#unit && (x < this.#gutter || x > this.#width - 20)) {
      const position = this.#timeMode ? this.#board.run.began(column) : column;
      this.#from = position - (this.#width - this.#gutter) / 2 / this.#unit;
    }
    const place = this.rows.findIndex((row) => row.id === this.chosen[0]);
    if (place >= 0) {
      const top = TOP + place * PITCH;
      if (top < this.root.scrollTop || top + PITCH > this.root.scrollTop + this.#height() - AXIS)
        this.root.scrollTop = Math.max(0, top - this.#height() / 2);
    }
  }

  draw(view: HTMLElement): void {
    const { run } = this.#board;
    this.#width = view.clientWidth || 600;
    this.#gutter = this.#width < 520 ? 84 : 190;
    const height = this.#height();
    this.#inner.style.height = `${TOP + this.rows.length * PITCH + AXIS}px`;
    this.root.style.maxHeight = `${height}px`;
    const pen = prepare(this.canvas, this.#width, height, view);
    this.#scale = this.#newScale();
    if (!pen) return;
    const scrolled = this.root.scrollTop;
    const right = this.#width - 8;
    this.#drawColumns(pen, height - AXIS);
    const first = Math.max(0, Math.floor((scrolled - TOP) / PITCH));
    const last = Math.min(this.rows.length, first + Math.ceil(height / PITCH) + 1);
    for (let i = first; i < last; i++) {
      const row = this.rows[i] as RunRow;
      const y = TOP + i * PITCH - scrolled;
      if (y > height - AXIS - BAR / 2) break;
      const chosen = this.chosen.includes(row.id);
      if (chosen) {
        pen.g.fillStyle = pen.colours.line;
        pen.g.globalAlpha = 0.4;
        pen.g.fillRect(0, y - 3, this.#width, PITCH);
        pen.g.globalAlpha = 1;
      }
      drawRow(pen, run, row, this.#scale, y, BAR, this.#gutter, right, this.chosen.length > 0 && !chosen);
      this.#drawName(pen, row, y, chosen);
    }
    pen.g.clearRect(0, height - AXIS, this.#width, AXIS);
    pen.text(this.#timeMode ? "time" : "step", 12, height - 5, pen.colours.dim);
    drawAxis(pen, run, this.#scale, height - 5, this.#gutter, right, this.#timeMode);
  }

  #height(): number {
    return TOP + Math.max(1, Math.min(MOST_SHOWN, this.rows.length)) * PITCH + AXIS;
  }

  #fitting(): number {
    const { run } = this.#board;
    const space = this.#width - this.#gutter - 26;
    if (this.#timeMode) return space / Math.max(1, (run.at[run.columns - 1] ?? 1) - this.#zero());
    return Math.min(WIDEST, space / Math.max(1, run.columns));
  }

  #zero(): number {
    let zero = this.#board.run.began(0);
    for (const row of this.rows) if (row.submit >= 0) zero = Math.min(zero, row.submit);
    return zero;
  }

  #newScale(): Scale {
    const unit = this.#unit || this.#fitting();
    const { run } = this.#board;
    if (this.#timeMode) {
      if (!this.#unit) this.#from = this.#zero();
      return timeScale(run, this.#gutter, this.#from, unit);
    }
    const seen = (this.#width - this.#gutter - 26) / unit;
    this.#from = Math.max(0, Math.min(this.#from, run.columns - seen * 0.5));
    if (!this.#unit) this.#from = 0;
    return stepScale(this.#gutter, this.#from, unit);
  }

  #position(x: number): number {
    return this.#from + (x - this.#gutter) / (this.#unit || this.#fitting());
  }

  /** The brushed columns and the one that is pointed at, behind the rows. */
  #drawColumns(pen: Pen, height: number): void {
    const stripe = (from: number, to: number, colour: keyof Colours, alpha: number) => {
      const left = Math.max(this.#gutter, this.#scale.left(from) - 1);
      const right = Math.max(left + 3, this.#scale.right(to) + 1);
      if (right < this.#gutter) return;
      pen.g.fillStyle = pen.colours[colour];
      pen.g.globalAlpha = alpha;
      pen.g.fillRect(left, 0, right - left, height);
      pen.g.globalAlpha = 1;
    };
    if (this.brush) {
      stripe(...this.brush, "hot", 0.22);
      pen.g.fillStyle = pen.colours.fg;
      for (const x of [this.#scale.left(this.brush[0]) - 1, this.#scale.right(this.brush[1])])
        if (x >= this.#gutter) pen.g.fillRect(x, 0, 1, height);
    }
    if (this.hot >= 0) stripe(this.hot, this.hot, "hot", 0.6);
  }

  #drawName(pen: Pen, row: RunRow, y: number, chosen: boolean): void {
    const { g, colours } = pen;
    g.save();
    g.beginPath();
    g.rect(0, y - 3, this.#gutter - 6, PITCH);
    g.clip();
    // Isolated, so that a right-to-left prompt cannot turn its number around.
    const name =
      this.#gutter > 100 && row.title
        ? `#${row.id} ${isolated(pen.fitted(row.title.slice(0, 80), this.#gutter - 54, chosen))}`
        : `#${row.id}`;
    const mark = chosen ? `${this.chosen.indexOf(row.id) === 0 ? CHOSEN : BESIDE} ` : "";
    pen.text(mark + name, 12, y + 11, chosen ? colours.fg : colours.dim, chosen);
    g.restore();
  }

  #columnAt(event: MouseEvent): number {
    const x = event.offsetX;
    if (x < this.#gutter) return -1;
    const column = Math.floor(this.#scale.column(x));
    return column >= 0 && column < this.#board.run.columns ? column : -1;
  }

  #rowAt(event: MouseEvent): RunRow | null {
    return this.rows[Math.floor((event.offsetY - TOP + 3 + this.root.scrollTop) / PITCH)] ?? null;
  }

  #listen(): void {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.#drag = { x: event.offsetX, column: this.#columnAt(event), moved: false };
      canvas.setPointerCapture?.(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const column = this.#columnAt(event);
      if (this.#drag && Math.abs(event.offsetX - this.#drag.x) > DRAG_PX && this.#drag.column >= 0) {
        this.#drag.moved = true;
        const to = column < 0 ? (event.offsetX < this.#drag.x ? 0 : this.#board.run.columns - 1) : column;
        this.#hears.brush([Math.min(this.#drag.column, to), Math.max(this.#drag.column, to)]);
      }
      this.#hears.point(column, this.#rowAt(event));
    });
    canvas.addEventListener("pointerup", (event) => {
      const drag = this.#drag;
      this.#drag = null;
      const row = this.#rowAt(event);
      if (drag && !drag.moved && row)
        this.#hears.pick(row, event.shiftKey || event.ctrlKey, this.#columnAt(event));
    });
    canvas.addEventListener("pointerleave", () => {
      if (!this.#drag) this.#hears.point(-1, null);
    });
    canvas.addEventListener("dblclick", () => this.fit());
    canvas.addEventListener("blur", () => this.#hears.point(-1, null));
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (event.ctrlKey || event.metaKey) {
          event.preventDefault();
          this.zoom(Math.exp(-event.deltaY / 300), event.offsetX);
        } else if (this.#unit && (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))) {
          event.preventDefault();
          this.pan((event.deltaX || event.deltaY) / this.#width);
        }
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (event) => this.#onKey(event));
  }

  #onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { run } = this.#board;
    const last = run.columns - 1;
    const zooms: Record<string, number> = { "+": 1.5, "=": 1.5, "-": 1 / 1.5 };
    const factor = zooms[event.key];
    if (factor || event.key === "0") {
      event.preventDefault();
      if (factor) this.zoom(factor, this.hot >= 0 ? this.#scale.left(this.hot) : undefined);
      else this.fit();
      return;
    }
    if (event.key === "Escape") {
      this.#hears.brush(null);
      return;
    }
    if (event.key === "Enter") {
      // As a click on the chosen row in this column; with Shift, on the one beside it.
      const row = this.rows.find(({ id }) => id === this.chosen[event.shiftKey ? 1 : 0]);
      if (!row || this.hot < 0) return;
      event.preventDefault();
      this.#hears.pick(row, false, this.hot);
      return;
    }
    const here = this.hot;
    const to = { ArrowRight: here + 1, ArrowLeft: here < 0 ? last : here - 1, Home: 0, End: last }[event.key];
    if (to === undefined || last < 0) return;
    event.preventDefault();
    const column = Math.max(0, Math.min(last, to));
    // Here and now: the next key may come before the next drawing, which sets both to what the view knows.
    this.hot = column;
    if (event.shiftKey && here >= 0) {
      const [a, b] = this.brush ?? [here, here];
      this.brush = here === a && a !== b ? sorted(column, b) : sorted(a, column);
      this.#hears.brush(this.brush);
    }
    const chosen = this.rows.find((row) => row.id === this.chosen[0]) ?? null;
    this.#hears.point(column, chosen);
    this.reveal(column);
  }
}

function sorted(a: number, b: number): [number, number] {
  return a <= b ? [a, b] : [b, a];
}
