// Every sentence and figure of the view, as text. No DOM here.

import { isOver, type RowState, type Status, type TokenFacts } from "./wire";

export const LOST = "The kernel is gone or was restarted. This is what had arrived.";

/** Drawn marks differ in shape too: colour is never alone. */
export const SIGNS = {
  queued: "○",
  prefill: "◐",
  decode: "●",
  finished: "✓",
  cancelled: "⊘",
  failed: "!",
} as const;

/** States as a reader says them. */
export const STATES = {
  queued: "queued",
  prefill: "reading prompt",
  decode: "writing",
  finished: "finished",
  cancelled: "cancelled",
  failed: "failed",
} as const;

/** The same state in the program's word. */
export function statusWords(status: Status): string {
  return `In Python this is the status "${status}"`;
}

const count = new Intl.NumberFormat("en");

export function tokens(n: number): string {
  return `${count.format(n)} ${n === 1 ? "token" : "tokens"}`;
}

function rate(tps: number): string {
  return `${tps.toFixed(tps < 10 ? 1 : 0)} tokens/s`;
}

/** The figures at the end of a row's line. */
export function figures(row: RowState): string {
  if (row.status === "queued" || row.status === "prefill") return row.seconds ? `${row.seconds} s` : "";
  const parts = [tokens(row.generated)];
  if (row.tps !== null) parts.push(rate(row.tps));
  if (isOver(row.status) && row.first_s !== null) parts.push(`first after ${row.first_s.toFixed(1)} s`);
  return parts.join(" · ");
}

/** What a row does before its text begins; "" once it answers. */
export function prelude(row: RowState): string {
  if (row.status === "queued") return row.waiting ? `waiting: ${row.waiting}` : "waiting";
  if (row.status !== "prefill") return "";
  return `reading the prompt, ${count.format(row.prefilled)} of ${tokens(row.prompt_tokens)}`;
}

/** The line on top of several rows. */
export function summary(rows: RowState[]): string {
  const waiting = rows.filter((row) => row.status === "queued").length;
  const over = rows.filter((row) => isOver(row.status)).length;
  const parts = [`${rows.length} rows`];
  if (over) parts.push(`${over} done`);
  if (waiting) parts.push(`${waiting} waiting`);
  return parts.join(" · ");
}

/** Tokens a second of all rows that answer now; "" if none does. */
export function totalRate(rows: RowState[]): string {
  const running = rows.filter((row) => row.status === "decode" && row.tps !== null);
  return running.length ? rate(running.reduce((sum, row) => sum + (row.tps ?? 0), 0)) : "";
}

/** What a screen reader is told when states change; never the text itself. */
export function spoken(rows: RowState[]): string {
  const [only] = rows;
  if (rows.length === 1 && only)
    return isOver(only.status) ? `${STATES[only.status]}, ${tokens(only.generated)}` : STATES[only.status];
  const over = rows.filter((row) => isOver(row.status)).length;
  return `${over} of ${rows.length} rows done`;
}

/** One line about a token: `n` counts from 1. */
export function tokenWords(row: RowState, n: number, facts: TokenFacts | null): string {
  const parts = [`token ${count.format(n)}`];
  const chance = row.tokens?.chances[n - 1];
  if (chance !== null && chance !== undefined) parts.push(`probability ${percent(chance)}`);
  if (facts) {
    if (facts.ms !== null) parts.push(cameWords(n, facts.ms));
    parts.push(`step ${count.format(facts.step)}`);
    const others = facts.shared.slice(0, 8).map((id) => `#${id}`);
    if (facts.shared.length > 8) others.push(`${facts.shared.length - 8} more`);
    parts.push(others.length ? `shared with ${others.join(" ")}` : "alone in its step");
    if (facts.top.length) parts.push(candidateWords(facts.top));
    else if (chance === null || chance === undefined)
      parts.push("no probabilities: ask for them with logprobs=3");
  }
  return parts.join(" · ");
}

/** How long a row waited for a token, which is more than its step took where prompts were read between two steps. */
export function cameWords(n: number, ms: number): string {
  const after = n === 1 ? "its place in the batch" : "the token before";
  return `came ${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms after ${after}`;
}

/** What else a token might have been. */
export function candidateWords(top: readonly { text: string; logprob: number }[]): string {
  // A token's own first space keeps to its quotation mark, whatever the line's length.
  const quoted = (text: string) => `“${isolated(text.replace(/^ /, "\u00a0"))}”`;
  return `candidates: ${top.map((one) => `${quoted(one.text)} ${percent(Math.exp(one.logprob))}`).join(", ")}`;
}

/** A text that cannot turn around what stands beside it, whichever way it is written. */
export function isolated(text: string): string {
  // Its own isolates go: an end that it did not begin would end this one.
  return `\u2068${text.replace(/[\u2066-\u2069]/g, "")}\u2069`;
}

export function percent(chance: number): string {
  return chance >= 0.0995
    ? `${Math.round(chance * 100)}%`
    : `${(chance * 100).toFixed(chance >= 0.001 ? 1 : 2)}%`;
}
