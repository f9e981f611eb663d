// A run as the kernel tells it: rows, and the columns that they share. No DOM here.
//
// A column is one forward of the model: a decode step, or a chunk of prompts. Columns are what the
// charts draw side by side, so that nothing is hidden between two steps.

import type { Body, Requests } from "./boardwire";
import { isOver, type Status } from "./wire";

export interface Chunk {
  column: number;
  start: number;
  stop: number;
}

/** One request. Times are microseconds, -1 = not yet; columns count from the run's first. */
export interface RunRow {
  id: number;
  title: string;
  status: Status;
  slot: number;
  priority: number;
  promptTokens: number;
  cached: number;
  prefilled: number;
  generated: number;
  limit: number;
  submit: number;
  admit: number;
  first: number;
  end: number;
  reason: string;
  detail: string;
  waiting: string;
  note: string;
  chunks: Chunk[];
  /** Column of each token, in order; empty where the kernel sends no tokens (the dashboard). */
  tokens: number[];
  /** Stretches of neighbouring columns with a token in each: [first, last]. */
  runs: [number, number][];
  /** Text and probability (0 to 1) of each token. */
  texts: string[];
  chances: (number | null)[];
  user: Map<number, number>;
}

export class Run {
  rows = new Map<number, RunRow>();
  now = 0;
  /** By column: end and length in microseconds, number of the step, rows in it, rows waiting. */
  at: number[] = [];
  spent: number[] = [];
  step: number[] = [];
  inStep: number[] = [];
  queued: number[] = [];
  /** By column: 1 = a decode step, 0 = it read prompts. */
  decode: number[] = [];
  pauses: number[] = [];
  #columnOfStep = new Map<number, number>();

  get columns(): number {
    return this.at.length;
  }

  add(body: Body): void {
    this.now = Math.max(this.now, body.now ?? 0);
    if (body.requests) this.#requests(body.requests);
    body.titles?.id.forEach((id, i) => {
      this.#row(id).title = body.titles?.title[i] ?? "";
    });
    this.#columns(body);
    const { tokens, texts, controls } = body;
    if (tokens) for (let i = 0; i < tokens.row.length; i++) this.#token(tokens, i);
    if (texts) for (let i = 0; i < texts.row.length; i++) this.#text(texts.row[i], texts.n[i], texts.text[i]);
    controls?.at.forEach((at, i) => {
      if (controls.what[i] === "pause") this.pauses.push(at);
    });
  }

  #requests(table: Requests): void {
    for (let i = 0; i < table.id.length; i++) {
      const row = this.#row(table.id[i] as number);
      const slot = table.slot[i] ?? -1;
      Object.assign(row, {
        status: table.status[i] ?? row.status,
        slot: slot >= 0 ? slot : row.slot,
        priority: table.priority[i] ?? 0,
        promptTokens: table.prompt_tokens[i] ?? 0,
        cached: table.cached_tokens[i] ?? 0,
        prefilled: table.prefilled[i] ?? 0,
        generated: table.generated_tokens[i] ?? 0,
        limit: table.max_tokens[i] ?? 0,
        submit: table.submit[i] ?? -1,
        admit: table.admit[i] ?? -1,
        first: table.first[i] ?? -1,
        end: table.end[i] ?? -1,
        reason: table.reason[i] ?? "",
        detail: table.detail[i] ?? "",
        waiting: table.waiting[i] ?? "",
        note: table.note[i] ?? "",
      });
      if (row.slot < 0 && row.admit >= 0) row.slot = this.#freeSlot(row);
    }
  }

  /** Steps and chunks of one message, in the order in which they ended. */
  #columns({ steps, chunks }: Body): void {
    let c = 0;
    const chunksUntil = (time: number) => {
      if (!chunks) return;
      for (; c < chunks.row.length && (chunks.end[c] as number) <= time; c++) {
        const [start, end] = [chunks.start[c] as number, chunks.end[c] as number];
        const last = this.columns - 1;
        // Short prompts are read together: the same times are one forward.
        if (last < 0 || this.decode[last] || this.at[last] !== end || this.spent[last] !== end - start)
          this.#column(end, end - start, chunks.step[c] as number, 0, this.queued[last] ?? 0, 0);
        const column = this.columns - 1;
        this.inStep[column] = (this.inStep[column] ?? 0) + 1;
        this.#row(chunks.row[c] as number).chunks.push({
          column,
          start: chunks.from[c] as number,
          stop: chunks.to[c] as number,
        });
      }
    };
    for (let i = 0; i < (steps?.step.length ?? 0); i++) {
      if (!steps) break;
      const [start, end] = [steps.start[i] as number, steps.end[i] as number];
      chunksUntil(start);
      const step = steps.step[i] as number;
      this.#columnOfStep.set(step, this.columns);
      this.#column(end, end - start, step, steps.rows[i] ?? 0, steps.queued[i] ?? 0, 1);
    }
    chunksUntil(Number.POSITIVE_INFINITY);
  }

  #column(at: number, spent: number, step: number, rows: number, queued: number, decode: number): void {
    this.at.push(at);
    this.spent.push(spent);
    this.step.push(step);
    this.inStep.push(rows);
    this.queued.push(queued);
    this.decode.push(decode);
  }

  #token(tokens: NonNullable<Body["tokens"]>, i: number): void {
    const row = this.#row(tokens.row[i] as number);
    const column = this.#columnOfStep.get(tokens.step[i] as number);
    const n = tokens.n[i] as number;
    if (column === undefined || row.tokens.length >= n) return;
    // Tokens that were overwritten before anybody could read them leave a hole, not a shift.
    while (row.tokens.length < n - 1) row.tokens.push(row.tokens.at(-1) ?? -1);
    row.tokens.push(column);
    const logprob = tokens.logprob?.[i];
    if (logprob !== null && logprob !== undefined) row.chances[n - 1] = Math.exp(Math.min(0, logprob));
    const user = tokens.user?.[i];
    if (user) row.user.set(n - 1, user);
    const last = row.runs[row.runs.length - 1];
    if (last && last[1] >= column - 1) last[1] = column;
    else row.runs.push([column, column]);
  }

  #text(id: number | undefined, n: number | undefined, text: string | undefined): void {
    if (id === undefined || n === undefined || !text) return;
    const { texts } = this.#row(id);
    while (texts.length < n) texts.push("");
    texts[n - 1] += text;
  }

  #row(id: number): RunRow {
    let row = this.rows.get(id);
    if (!row) {
      row = {
        id,
        title: "",
        status: "queued",
        slot: -1,
        priority: 0,
        promptTokens: 0,
        cached: 0,
        prefilled: 0,
        generated: 0,
        limit: 0,
        submit: -1,
        admit: -1,
        first: -1,
        end: -1,
        reason: "",
        detail: "",
        waiting: "",
        note: "",
        chunks: [],
        tokens: [],
        runs: [],
        texts: [],
        chances: [],
        user: new Map(),
      };
      this.rows.set(id, row);
    }
    return row;
  }

  /** The lowest place that nobody had while this row had one: for runs that do not tell places. */
  #freeSlot(row: RunRow): number {
    const end = row.end < 0 ? Number.POSITIVE_INFINITY : row.end;
    const taken = new Set<number>();
    for (const other of this.rows.values())
      if (other !== row && other.slot >= 0 && other.admit < end && (other.end < 0 || other.end > row.admit))
        taken.add(other.slot);
    let slot = 0;
    while (taken.has(slot)) slot += 1;
    return slot;
  }

  /** Where the first item not below `value` is, in an ascending list. */
  static search(list: ArrayLike<number>, value: number): number {
    let low = 0;
    let high = list.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((list[middle] as number) < value) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The first column that was not over at a time: where a mark of that time belongs. */
  columnAfter(time: number): number {
    return Run.search(this.at, time + 1);
  }

  /** The columns of the decode steps from one number to another, of those that there are. */
  columnsOfSteps(from: number | undefined, to: number | undefined): [number, number] | null {
    if (from === undefined || to === undefined) return null;
    // A chunk has the number of the step before it.
    let first = Run.search(this.step, from);
    let last = Run.search(this.step, to + 1) - 1;
    while (first < last && !this.decode[first]) first += 1;
    while (last > first && !this.decode[last]) last -= 1;
    return first <= last ? [first, last] : null;
  }

  /** Which column was under way at a time, and the share of it that had passed. */
  columnAt(time: number): number {
    const i = Run.search(this.at, time);
    if (i >= this.columns) return this.columns;
    const spent = Math.max(1, this.spent[i] ?? 1);
    return i + Math.min(1, Math.max(0, (time - this.began(i)) / spent));
  }

  began(column: number): number {
    return (this.at[column] ?? 0) - (this.spent[column] ?? 0);
  }

  /** Stretches of columns in which a row got a token, those that reach into [from, to]. */
  runsOf(row: RunRow, from: number, to: number): [number, number][] {
    if (row.runs.length || row.first < 0) return row.runs;
    // No tokens were sent: it got one in each step between its first and its last.
    const made: [number, number][] = [];
    for (let c = Math.max(0, Math.floor(from)); c <= Math.min(to, this.columns - 1); c++) {
      const at = this.at[c] as number;
      if (!this.decode[c] || at < row.first || (row.end >= 0 && at > row.end)) continue;
      const last = made[made.length - 1];
      if (last && last[1] === c - 1) last[1] = c;
      else made.push([c, c]);
    }
    return made;
  }

  /** Number of the token (from 0) that a row got in a column, or -1. */
  tokenIn(row: RunRow, column: number): number {
    const i = Run.search(row.tokens, column);
    return row.tokens[i] === column ? i : -1;
  }

  chunkIn(row: RunRow, column: number): Chunk | undefined {
    return row.chunks.find((chunk) => chunk.column === column);
  }

  /** Who had a part in a column. */
  rowsIn(column: number): RunRow[] {
    const hasToken = (row: RunRow) =>
      row.tokens.length ? this.tokenIn(row, column) >= 0 : this.runsOf(row, column, column).length > 0;
    return [...this.rows.values()].filter((row) =>
      this.decode[column] ? hasToken(row) : this.chunkIn(row, column) !== undefined,
    );
  }
}

export function isOverRow(row: RunRow): boolean {
  return isOver(row.status);
}
