// A run as its log tells it: rows, and the columns that they share. No DOM and no wire here.
//
// A column is one forward of the model: a decode step, or a chunk of prompts. Columns are what the
// charts draw side by side, so that nothing is hidden between two steps.

import type { Log } from "./boardwire";
import type { Status } from "./wire";

export const KIND = { SUBMIT: 1, ADMIT: 2, CHUNK: 3, TOKEN: 4, STEP: 5, END: 6, REWIND: 7, LEASE: 8, POLICY: 9 } as const;

/** The order of finish reasons on the wire, and the state that each leaves a row in. */
const ENDS: Status[] = ["finished", "finished", "cancelled", "failed"];
export const REASONS = ["stop", "length", "cancelled", "error"];

/** How many tokens of rows that are over are kept in a page. */
export const MOST_TOKENS = 400_000;

export interface Chunk {
  column: number;
  start: number;
  stop: number;
  at: number;
  spent: number;
}

/** One request. Times are microseconds, -1 = not yet; columns count from the run's first. */
export interface RunRow {
  id: number;
  status: Status;
  promptTokens: number;
  limit: number;
  cached: number;
  lane: number;
  submitAt: number;
  submitColumn: number;
  admitAt: number;
  admitColumn: number;
  prefilled: number;
  chunks: Chunk[];
  /** Column of each token, in order. */
  tokens: number[];
  /** Stretches of neighbouring columns with a token in each: [first, last]. */
  runs: [number, number][];
  firstAt: number;
  endAt: number;
  endColumn: number;
  reason: string;
  rewinds: number;
}

export class Run {
  /** Index of the record that would come next. */
  next = 0;
  missed = 0;
  rows = new Map<number, RunRow>();
  /** By column. */
  at: number[] = [];
  spent: number[] = [];
  step: number[] = [];
  inStep: number[] = [];
  queued: number[] = [];
  /** True where the column is a decode step, false where it read prompts. */
  decode: boolean[] = [];
  lanes: (number | null)[] = [];
  /** Device leases: [granted column, given back column or -1]. */
  leases: [number, number][] = [];
  policyFailed = false;
  tokens = 0;
  #chunkKey = "";

  get columns(): number {
    return this.at.length;
  }

  /** Takes what is new in `log`. False = records between are missing: ask for them. */
  add(log: Log): boolean {
    if (log.first > this.next && log.missed === 0 && log.first > 0) return false;
    const skip = Math.max(0, this.next - log.first);
    if (log.first > this.next) this.missed += log.first - this.next;
    let at = 0;
    for (let i = 0; i < log.kind.length; i++) {
      at += log.at[i] ?? 0;
      if (i < skip) continue;
      this.#take(
        at,
        log.kind[i] ?? 0,
        log.row[i] ?? 0,
        log.step[i] ?? 0,
        log.a[i] ?? 0,
        log.b[i] ?? 0,
        log.spent[i] ?? 0,
      );
    }
    this.next = Math.max(this.next, log.first + log.kind.length);
    if (this.tokens > MOST_TOKENS) this.#forget();
    return true;
  }

  #take(at: number, kind: number, id: number, step: number, a: number, b: number, spent: number): void {
    if (kind === KIND.TOKEN) return this.#token(id, b);
    if (kind === KIND.STEP) {
      this.#column(at, spent, step, a, b, true);
      return;
    }
    if (kind === KIND.LEASE) {
      if (a === 1) this.leases.push([this.columns, -1]);
      else if (this.leases.length) (this.leases[this.leases.length - 1] as [number, number])[1] = this.columns;
      return;
    }
    if (kind === KIND.POLICY) {
      this.policyFailed = true;
      return;
    }
    const row = this.#row(id, at);
    if (kind === KIND.SUBMIT) {
      row.promptTokens = a;
      row.limit = b;
      row.submitAt = at;
      row.submitColumn = this.columns;
    } else if (kind === KIND.ADMIT) {
      row.status = "prefill";
      row.cached = a;
      row.prefilled = a;
      row.admitAt = at;
      row.admitColumn = this.columns;
      row.lane = this.#takeLane(id);
    } else if (kind === KIND.CHUNK) {
      // Short prompts are read together: their records carry the same time and make one column.
      const key = `${at}/${spent}`;
      if (key !== this.#chunkKey) this.#column(at, spent, step, 0, this.queued[this.columns - 1] ?? 0, false);
      this.#chunkKey = key;
      row.prefilled = b;
      row.chunks.push({ column: this.columns - 1, start: a, stop: b, at, spent });
      if (b >= row.promptTokens - 1 && row.status === "prefill") row.status = "decode";
      else if (row.status === "queued") row.status = "prefill";
    } else if (kind === KIND.END) {
      row.status = ENDS[a] ?? "finished";
      row.reason = REASONS[a] ?? "";
      row.endAt = at;
      row.endColumn = this.columns;
      this.#freeLane(row);
    } else if (kind === KIND.REWIND) {
      row.status = "queued";
      row.rewinds += 1;
      row.prefilled = 0;
      this.#freeLane(row);
    }
  }

  #token(id: number, number: number): void {
    const row = this.rows.get(id);
    const column = this.columns - 1;
    if (!row || column < 0) return;
    row.status = "decode";
    if (row.firstAt < 0) row.firstAt = this.at[column] ?? 0;
    // Tokens that were overwritten before we could read them leave a hole, not a shift.
    while (row.tokens.length < number - 1) row.tokens.push(row.tokens.at(-1) ?? -1);
    row.tokens.push(column);
    this.tokens += 1;
    const last = row.runs[row.runs.length - 1];
    if (last && last[1] >= column - 1) last[1] = column;
    else row.runs.push([column, column]);
  }

  #column(at: number, spent: number, step: number, rows: number, queued: number, decode: boolean): void {
    this.#chunkKey = "";
    this.at.push(at);
    this.spent.push(spent);
    this.step.push(step);
    this.inStep.push(rows);
    this.queued.push(queued);
    this.decode.push(decode);
  }

  #row(id: number, at: number): RunRow {
    let row = this.rows.get(id);
    if (!row) {
      row = {
        id,
        status: "queued",
        promptTokens: 0,
        limit: 0,
        cached: 0,
        lane: -1,
        submitAt: at,
        submitColumn: this.columns,
        admitAt: -1,
        admitColumn: -1,
        prefilled: 0,
        chunks: [],
        tokens: [],
        runs: [],
        firstAt: -1,
        endAt: -1,
        endColumn: -1,
        reason: "",
        rewinds: 0,
      };
      this.rows.set(id, row);
    }
    return row;
  }

  #takeLane(id: number): number {
    let lane = this.lanes.indexOf(null);
    if (lane < 0) lane = this.lanes.length;
    this.lanes[lane] = id;
    return lane;
  }

  #freeLane(row: RunRow): void {
    if (this.lanes[row.lane] === row.id) this.lanes[row.lane] = null;
  }

  #forget(): void {
    for (const [id, row] of this.rows) {
      if (this.tokens <= MOST_TOKENS / 2) return;
      if (row.endAt < 0) continue;
      this.tokens -= row.tokens.length;
      this.rows.delete(id);
    }
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
    return [...this.rows.values()].filter((row) => this.tokenIn(row, column) >= 0 || this.chunkIn(row, column));
  }

  /** Which column was under way at a time, and the share of it that had passed. */
  columnAt(time: number): number {
    const i = Run.search(this.at, time);
    if (i >= this.columns) return this.columns;
    const spent = Math.max(1, this.spent[i] ?? 1);
    const began = (this.at[i] as number) - spent;
    return i + Math.min(1, Math.max(0, (time - began) / spent));
  }

  began(column: number): number {
    return (this.at[column] ?? 0) - (this.spent[column] ?? 0);
  }
}

export function isOverRow(row: RunRow): boolean {
  return row.endAt >= 0;
}
