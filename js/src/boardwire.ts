// What goes over the wire of the dashboard and the timeline. The mirror of `mlx_notebook/notebook/board_wire.py`.

import type { Status } from "./wire";

/** Records `first` on; `at` are microseconds, the first as it is, then differences. */
export interface Log {
  first: number;
  missed: number;
  at: number[];
  kind: number[];
  row: number[];
  step: number[];
  a: number[];
  b: number[];
  spent: number[];
}

export interface RowFacts {
  id: number;
  prompt: string;
  status: Status;
  cached: number;
  limit: number;
  priority: number;
  waiting: string;
  note: string;
}

export interface Figures {
  places: number;
  active: number;
  prefill: number;
  queued: number;
  tps: number;
  kv_bytes: number;
  kv_projected: number;
  kv_budget: number;
  weight_bytes: number;
  cache_bytes: number;
  cache_entries: number;
  cache_hits: number;
  cache_misses: number;
  cache_tokens: number;
  holder: string;
  paused: boolean;
  pace: number;
  closed: boolean;
  now_us: number;
}

export interface Pieces {
  id: number;
  first: number;
  pieces: string[];
  p: (number | null)[];
  top: [string, number][][];
}

export interface Why {
  code: string;
  text: string;
}

export interface News {
  kind: "news";
  seq: number;
  whole: boolean;
  title: string;
  final: boolean;
  log: Log | null;
  rows: (Partial<RowFacts> & { id: number })[];
  figures: Figures | null;
  texts: Pieces[];
  /** Only in a page that was saved: the answers to "why" for each row. */
  reasons?: Record<string, Why[]>;
}

export type FromKernel =
  | News
  | { kind: "ack"; ask: number; ok: boolean; words: string }
  | { kind: "because"; ask: number; row: number; reasons: Why[] };

export type Action = "cancel" | "raise" | "extend" | "pause" | "resume" | "step" | "pace";

export type ToKernel =
  | { kind: "hello"; page: string }
  | { kind: "view"; page: string; view: string; on: boolean }
  | { kind: "visible"; view: string; on: boolean }
  | { kind: "selection"; view: string; active: boolean }
  | { kind: "gone"; view: string }
  | { kind: "want"; after: number }
  | { kind: "follow"; rows: number[] }
  | { kind: "do"; ask: number; action: Action; row: number; value: number }
  | { kind: "why"; ask: number; row: number; at_us: number };

export interface Traits {
  snapshot: News;
  selected: number[];
  brush: number[];
}
