// Every sentence and figure of the dashboard and the timeline, as text. No DOM here.

import type { AskState, Board } from "./board";
import type { Figures, Why } from "./boardwire";
import { seconds } from "./chart";
import type { RunRow } from "./run";

const count = new Intl.NumberFormat("en");

/** What the heads of the tables mean. */
export const MEANINGS = {
  row: "The request's number",
  answer: "Tokens of the answer so far, and its limit",
  waited: "From submitting to a place in the batch",
  first: "From submitting to the first token",
  each: "Time per token after the first",
} as const;

export const BUSY_KERNEL =
  "No answer yet: the kernel is busy, and here a message reaches it only between cells. Its stop button (■, interrupt) works.";

export const LOST = "The kernel is gone. This is the last that it told.";

export function bytes(n: number): string {
  if (n < 1e6) return `${Math.round(n / 1e3)} KB`;
  if (n < 1e9) return `${Math.round(n / 1e6)} MB`;
  return `${(n / 1e9).toFixed(1)} GB`;
}

export function many(n: number, one: string): string {
  return `${count.format(n)} ${one}${n === 1 ? "" : "s"}`;
}

export function number(n: number): string {
  return count.format(n);
}

/** The latest time that this page knows of, microseconds. */
export function latest(board: Board): number {
  const { run } = board;
  return Math.max(run.now, run.at[run.columns - 1] ?? 0);
}

export function waited(row: RunRow, now: number): string {
  const end = row.admit >= 0 ? row.admit : row.end >= 0 ? row.end : now;
  return seconds(Math.max(0, end - row.submit) / 1e6);
}

export function firstToken(row: RunRow): string {
  return row.first < 0 ? "" : seconds((row.first - row.submit) / 1e6);
}

export function eachToken(row: RunRow, now: number): string {
  if (row.generated < 2 || row.first < 0) return "";
  return seconds(((row.end >= 0 ? row.end : now) - row.first) / (row.generated - 1) / 1e6);
}

export function answerTokens(row: RunRow): string {
  return row.limit ? `${number(row.generated)} of ${number(row.limit)}` : number(row.generated);
}

/** What a row does, or why it doesn't: the sentence in its line. */
export function doing(row: RunRow): string {
  if (row.status === "queued") return row.waiting ? `waiting: ${row.waiting}` : "waiting";
  if (row.status === "prefill")
    return `reading the prompt, ${number(row.prefilled)} of ${many(row.promptTokens, "token")}${
      row.cached ? `, ${number(row.cached)} of them from the prompt cache` : ""
    }`;
  return row.note;
}

export function cacheShare(figures: Figures): string {
  const asked = figures.cache_hits + figures.cache_misses;
  return asked ? `${number(figures.cache_hits)} of ${number(asked)} found` : "nothing looked up yet";
}

/** What a column was, in one line. */
export function columnWords(board: Board, column: number): string {
  const { run } = board;
  if (column < 0 || column >= run.columns) return "";
  const rows = run.rowsIn(column);
  const names = rows.slice(0, 12).map((row) => `#${row.id}`);
  if (rows.length > 12) names.push(`${rows.length - 12} more`);
  const took = seconds((run.spent[column] ?? 0) / 1e6);
  const waiting = run.queued[column] ? `, ${run.queued[column]} waiting` : "";
  if (run.decode[column])
    return `step ${run.step[column]}: ${took}, ${many(rows.length, "row")} (${names.join(" ")})${waiting}`;
  const read = rows.map((row) => {
    const chunk = run.chunkIn(row, column);
    return chunk ? `#${row.id} tokens ${number(chunk.start)} to ${number(chunk.stop)}` : "";
  });
  return `prompt chunk after step ${run.step[column]}: ${took}, read ${read.slice(0, 6).join(", ")}${waiting}`;
}

export function whyWords(reasons: Why[]): string[] {
  return reasons.length ? reasons.map((reason) => reason.text) : ["nothing held it up"];
}

/** What a reader must know before anything else: each sentence that is true, the weightiest first. */
export function banner(board: Board, paused: string): string {
  if (board.lost) return LOST;
  const { figures } = board;
  const said: string[] = [];
  if (figures?.paused && board.acts) said.push(paused);
  if (figures?.delay_ms && board.acts)
    said.push(`Slow motion: ${seconds(figures.delay_ms / 1000)} of rest after each step, on purpose.`);
  if (figures?.missed)
    said.push(
      `The beginning is gone: ${many(figures.missed, "record")} of the log were overwritten before this view looked.`,
    );
  return said.join(" ");
}

/** What an asked-for action became, as a sentence. */
export function outcome(state: AskState, value: unknown, error: string, asked: string): string {
  if (state === "asked") return `${asked}…`;
  if (state === "silent") return BUSY_KERNEL;
  if (state === "refused") return error || `${asked}: refused`;
  if (typeof value === "number" && asked.startsWith("Extending"))
    return `The limit is now ${many(value, "token")}.`;
  return `${asked}: done`;
}
