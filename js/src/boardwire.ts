// What goes over the wire of the dashboard and the timeline: `docs/wire.md` in types.

import type { Status } from "./wire";

/** Columns of one length; a missing column is one of defaults, an absent table is an empty one. */
export interface Requests {
  id: number[];
  status: Status[];
  slot: number[];
  priority: number[];
  prompt_tokens: number[];
  cached_tokens: number[];
  prefilled: number[];
  generated_tokens: number[];
  max_tokens: number[];
  submit: number[];
  admit: number[];
  first: number[];
  end: number[];
  reason: string[];
  detail: string[];
  rewinds: number[];
  waiting: string[];
  note: string[];
}

export interface Figures {
  active: number;
  prefill: number;
  queued: number;
  places: number | null;
  tokens_per_s: number;
  kv_bytes: number;
  kv_projected_bytes: number;
  kv_budget_bytes: number | null;
  cache_hits: number;
  cache_misses: number;
  cache_tokens_reused: number;
  lease_holder: string | null;
  paused: boolean;
  stepping: number;
  delay_ms: number;
  steps: number;
  model: string;
  device: string;
  missed: number;
}

export interface Why {
  code: string;
  text: string;
  ms?: number;
}

export interface Body {
  now?: number;
  requests?: Requests;
  titles?: { id: number[]; title: string[]; model: string[] };
  steps?: { step: number[]; start: number[]; end: number[]; rows: number[]; queued: number[] };
  chunks?: { row: number[]; step: number[]; from: number[]; to: number[]; start: number[]; end: number[] };
  waits?: { at: number[]; row: number[]; cause: string[]; about: number[] };
  controls?: { at: number[]; what: string[]; row: number[]; value: number[] };
  tokens?: { row: number[]; step: number[]; n: number[]; user?: number[]; logprob?: (number | null)[] };
  texts?: { row: number[]; n: number[]; text: string[] };
  figures?: Figures;
  /** Only in a saved page: the answers to "why" by row id. */
  why?: Record<string, Why[]>;
}

export interface Snapshot {
  seq: number;
  count: number;
  view: "dashboard" | "timeline";
  title: string;
  live: boolean;
  final: boolean;
  wants?: string[];
  figures: Figures | null;
  /** Only in a saved page: everything. */
  body?: Body;
}

export type FromKernel =
  | ({ kind: "delta"; seq: number } & Body)
  | ({ kind: "history"; seq: number; part: number; parts: number } & Body)
  | { kind: "who" }
  | { kind: "ack"; ask: number }
  | { kind: "answer"; ask: number; ok: boolean; value: unknown; error: string };

export interface TokenFacts {
  token_id: number;
  text: string;
  logprob: number | null;
  top: { token_id: number; text: string; logprob: number }[];
  ms: number | null;
  shared: number[];
}

export type Asked =
  | { do: "cancel"; rows: number[] }
  | { do: "pause" | "resume" }
  | { do: "step"; steps: number }
  | { do: "pace"; ms: number }
  | { do: "reprioritize"; row: number; priority: number }
  | { do: "extend"; row: number; tokens: number }
  | { do: "why"; row: number; at?: number }
  | { do: "token"; row: number; n: number };

export type ToKernel =
  | { kind: "hello"; page: string; buffers: false }
  | { kind: "view"; page: string; view: string; on: boolean }
  | { kind: "visible"; view: string; on: boolean }
  | { kind: "selection"; view: string; active: boolean }
  | { kind: "here"; view: string }
  | { kind: "gone"; view: string }
  | { kind: "resync"; buffers: false }
  | ({ kind: "ask"; ask: number } & Asked);

export interface Traits {
  snapshot: Snapshot;
  selected: number[];
  brush: number[];
}
