// Drawing on canvas what rows did in which column. The same marks in every chart, told apart by shape too:
// hatched = waiting, striped = reading the prompt, solid = one token a column, a thin line = in the batch
// but not in this column, a sign at the end = how it ended.

import { Run, type RunRow } from "./run";

export interface Colours {
  fg: string;
  dim: string;
  bg: string;
  line: string;
  hot: string;
  queued: string;
  prefill: string;
  decode: string;
  finished: string;
  cancelled: string;
  failed: string;
}

export function coloursOf(root: Element): Colours {
  const style = getComputedStyle(root);
  const read = (name: string, spare: string) => style.getPropertyValue(`--mlx-${name}`).trim() || spare;
  return {
    fg: read("fg", "#1f2328"),
    dim: read("dim", "#656d76"),
    bg: read("bg", "#fff"),
    line: read("line", "#d8dee4"),
    hot: read("hot", "#f0e442"),
    queued: read("queued", "#676e77"),
    prefill: read("prefill", "#966300"),
    decode: read("decode", "#0072b2"),
    finished: read("finished", "#00795b"),
    cancelled: read("cancelled", "#a8497f"),
    failed: read("failed", "#bb4b00"),
  };
}

/** Where columns lie on the x axis, in CSS pixels. */
export interface Scale {
  /** Left edge of a column. */
  left(column: number): number;
  /** Right edge of a column. */
  right(column: number): number;
  /** Where a time lies that is `column` in columns. */
  moment(time: number, column: number): number;
  /** The column at a place, fractional. */
  column(x: number): number;
}

/** Every column equally wide: `from` is at `x0`. */
export function stepScale(x0: number, from: number, width: number): Scale {
  const left = (column: number) => x0 + (column - from) * width;
  return {
    left,
    right: (column) => left(column + 1),
    moment: (_time, column) => left(column),
    column: (x) => from + (x - x0) / width,
  };
}

/** Columns as wide as they took: `from` is a time (microseconds) at `x0`, `perMicro` pixels a microsecond. */
export function timeScale(run: Run, x0: number, from: number, perMicro: number): Scale {
  const at = (time: number) => x0 + (time - from) * perMicro;
  return {
    left: (column) => at(run.began(column)),
    right: (column) => at(run.at[column] ?? 0),
    moment: (time) => at(time),
    column: (x) => run.columnAt(from + (x - x0) / perMicro),
  };
}

export class Pen {
  readonly g: CanvasRenderingContext2D;
  readonly colours: Colours;
  #patterns = new Map<string, CanvasPattern | string>();

  constructor(g: CanvasRenderingContext2D, colours: Colours) {
    this.g = g;
    this.colours = colours;
  }

  /** Slanted lines on nothing: waiting. */
  hatch(): CanvasPattern | string {
    return this.#pattern("hatch", (p) => {
      p.strokeStyle = this.colours.queued;
      p.lineWidth = 1.6;
      p.beginPath();
      for (const x of [-6, 0, 6]) {
        p.moveTo(x, 6);
        p.lineTo(x + 6, 0);
      }
      p.stroke();
    });
  }

  /** Upright stripes of the prompt's colour. */
  stripes(): CanvasPattern | string {
    return this.#pattern("stripes", (p) => {
      p.fillStyle = this.colours.prefill;
      p.fillRect(0, 0, 6, 6);
      p.fillStyle = this.colours.bg;
      p.globalAlpha = 0.55;
      p.fillRect(4, 0, 1.5, 6);
    });
  }

  /** Words that fit into so many pixels; what is too long ends in "…". */
  fitted(words: string, width: number, bold = false): string {
    this.g.font = `${bold ? "600 " : ""}11px system-ui, sans-serif`;
    const full = this.g.measureText(words).width;
    if (full <= width) return words;
    return `${words.slice(0, Math.max(1, Math.floor((words.length * width) / full) - 2)).trimEnd()}…`;
  }

  text(words: string, x: number, y: number, colour: string, bold = false): void {
    this.g.fillStyle = colour;
    this.g.font = `${bold ? "600 " : ""}11px system-ui, sans-serif`;
    this.g.fillText(words, x, y);
  }

  #pattern(name: string, draw: (p: CanvasRenderingContext2D) => void): CanvasPattern | string {
    const kept = this.#patterns.get(name);
    if (kept) return kept;
    const tile = document.createElement("canvas");
    tile.width = 6;
    tile.height = 6;
    const p = tile.getContext("2d");
    let made: CanvasPattern | string = this.colours.queued;
    if (p) {
      draw(p);
      made = this.g.createPattern(tile, "repeat") ?? made;
    }
    this.#patterns.set(name, made);
    return made;
  }
}

/** Sizes a canvas for the screen's pixels and clears it; null where there is no canvas to draw on. */
export function prepare(canvas: HTMLCanvasElement, width: number, height: number, root: Element): Pen | null {
  const ratio = window.devicePixelRatio || 1;
  const w = Math.max(1, Math.round(width * ratio));
  const h = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== w || canvas.height !== h) {
    canvas.width = w;
    canvas.height = h;
    canvas.style.height = `${height}px`;
  }
  const g = canvas.getContext("2d");
  if (!g) return null;
  g.setTransform(ratio, 0, 0, ratio, 0, 0);
  g.clearRect(0, 0, width, height);
  return new Pen(g, coloursOf(root));
}

const ENDINGS = { finished: "✓", cancelled: "⊘", failed: "!" } as const;

/** One row's marks between x = `x0` and `x1`. `faint` draws tokens paler, so that another row stands out. */
export function drawRow(
  pen: Pen,
  run: Run,
  row: RunRow,
  scale: Scale,
  y: number,
  h: number,
  x0: number,
  x1: number,
  faint = false,
): void {
  const { g, colours } = pen;
  const place = (time: number) => scale.moment(time, run.columnAfter(time));
  const bar = (from: number, to: number, top: number, height: number) => {
    const left = Math.max(x0, from);
    const right = Math.min(x1, to);
    if (right > left) g.fillRect(left, y + top, Math.max(1, right - left), height);
  };
  const now = scale.moment(run.at[run.columns - 1] ?? 0, run.columns);
  const end = row.end >= 0 ? place(row.end) : now;
  const waitEnd = row.admit >= 0 ? place(row.admit) : end;
  g.fillStyle = pen.hatch();
  bar(place(row.submit), waitEnd, h * 0.2, h * 0.6);
  if (row.admit >= 0) {
    g.fillStyle = colours.dim;
    bar(waitEnd, end, h / 2 - 0.5, 1);
  }
  g.fillStyle = pen.stripes();
  for (const chunk of row.chunks) {
    const left = scale.left(chunk.column);
    const right = scale.right(chunk.column);
    if (right >= x0 && left <= x1) bar(left, Math.max(left + 1, right - (right - left > 3 ? 1 : 0)), 0, h);
  }
  g.fillStyle = colours.decode;
  g.globalAlpha = faint ? 0.45 : 1;
  drawTokens(run, row, scale, x0, x1, bar, h);
  g.globalAlpha = 1;
  if (row.end >= 0 && row.status in ENDINGS) {
    const x = end + 2;
    if (x >= x0 - 2 && x <= x1) {
      const status = row.status as keyof typeof ENDINGS;
      pen.text(ENDINGS[status], x, y + h - 3, colours[status], true);
    }
  }
}

/** Tokens as blocks where there is room for a gap between them, else as stretches; stretches that touch are one. */
function drawTokens(
  run: Run,
  row: RunRow,
  scale: Scale,
  x0: number,
  x1: number,
  bar: (from: number, to: number, top: number, height: number) => void,
  h: number,
): void {
  const first = Math.floor(scale.column(x0)) - 1;
  const runs = run.runsOf(row, first, Math.ceil(scale.column(x1)));
  let low = 0;
  let high = runs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((runs[middle] as [number, number])[1] < first) low = middle + 1;
    else high = middle;
  }
  let from = Number.NaN;
  let to = Number.NaN;
  for (let i = low; i < runs.length; i++) {
    const [a, b] = runs[i] as [number, number];
    const left = scale.left(a);
    if (left > x1) break;
    const width = scale.right(a) - left;
    // Low bars have no gaps: they would be most of the drawing and could not be seen.
    if (width >= 4 && h >= 8) {
      for (let c = Math.max(a, first); c <= b; c++) {
        const start = scale.left(c);
        if (start > x1) break;
        bar(start, scale.right(c) - 1, 0, h);
      }
      continue;
    }
    if (left <= to + 1) to = scale.right(b);
    else {
      if (to >= from) bar(from, Math.max(from + 1, to), 0, h);
      from = left;
      to = scale.right(b);
    }
  }
  if (to >= from) bar(from, Math.max(from + 1, to), 0, h);
}

/** Numbers of steps, or times, under an axis: as many as fit. */
export function drawAxis(
  pen: Pen,
  run: Run,
  scale: Scale,
  y: number,
  x0: number,
  x1: number,
  time: boolean,
): void {
  const { colours } = pen;
  if (!run.columns) return;
  if (time) {
    drawTimes(pen, run, scale, y, x0, x1);
    return;
  }
  let last = Number.NEGATIVE_INFINITY;
  const from = Math.max(0, Math.floor(scale.column(x0)));
  const to = Math.min(run.columns - 1, Math.ceil(scale.column(x1)));
  const every = nice((44 * (to - from)) / (x1 - x0));
  const final = run.step[to] as number;
  for (let step = Math.ceil((run.step[from] as number) / every) * every; step <= final; step += every) {
    // The first column of a step is its decoding; chunks after it bear its number too.
    const column = Run.search(run.step, step);
    const x = scale.left(column);
    if (!run.decode[column] || x < x0 || x > x1 - 30 || x - last < 44) continue;
    pen.text(String(step), x, y, colours.dim);
    last = x;
  }
}

/** Times since the first step, at round ones. */
function drawTimes(pen: Pen, run: Run, scale: Scale, y: number, x0: number, x1: number): void {
  const zero = run.began(0);
  const begin = scale.moment(zero, 0);
  const perMicro = scale.moment(zero + 1, 0) - begin;
  const micros = 70 / perMicro;
  const power = 10 ** Math.floor(Math.log10(micros));
  const every = ([1, 2, 5, 10].find((one) => one * power >= micros) ?? 10) * power;
  for (let n = Math.max(0, Math.ceil((x0 - begin) / perMicro / every)); ; n++) {
    const x = begin + n * every * perMicro;
    if (x > x1 - 30) return;
    pen.text(roundTime((n * every) / 1e6, every / 1e6), x, y, pen.colours.dim);
  }
}

/** A time that is a multiple of `every` seconds, without digits that all are zero. */
function roundTime(s: number, every: number): string {
  if (every < 1e-3) return `${Math.round(s * 1e6)} µs`;
  if (every < 0.1) return `${Math.round(s * 1e3)} ms`;
  return `${s.toFixed(every < 1 ? 1 : 0)} s`;
}

function nice(n: number): number {
  for (const step of [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000]) if (step >= n) return step;
  return Math.ceil(n / 1000) * 1000;
}

export function seconds(s: number): string {
  if (s <= 0) return "0 s";
  if (s < 0.001) return `${Math.round(s * 1e6)} µs`;
  if (s < 0.01) return `${(s * 1000).toFixed(1)} ms`;
  if (s < 1) return `${Math.round(s * 1000)} ms`;
  return s < 10 ? `${s.toFixed(2)} s` : s < 100 ? `${s.toFixed(1)} s` : `${Math.round(s)} s`;
}
