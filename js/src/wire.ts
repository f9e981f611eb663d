// What goes over the wire. The mirror of `mlx_notebook/notebook/stream_wire.py`.

export type Status = "queued" | "prefill" | "decode" | "finished" | "cancelled" | "failed";

/** A row without its text. Counts are tokens; null = no such figure yet. */
export interface Figures {
  status: Status;
  prompt_tokens: number;
  prefilled: number;
  generated: number;
  tps: number | null;
  first_s: number | null;
  seconds: number | null;
  waiting: string;
  note: string;
}

export interface RowState extends Figures {
  prompt: string;
  text: string;
}

export interface Snapshot {
  seq: number;
  count: number;
  title: string;
  final: boolean;
  rows: RowState[];
}

/** What is new in one row: changed figures, and text to add at the end. */
export interface RowNews extends Partial<Figures> {
  i: number;
  add?: string;
}

export type FromKernel = { kind: "delta"; seq: number; rows: RowNews[] } | { kind: "ack"; ask: number };

export type ToKernel =
  | { kind: "hello"; page: string }
  | { kind: "view"; page: string; view: string; on: boolean }
  | { kind: "visible"; view: string; on: boolean }
  | { kind: "selection"; view: string; active: boolean }
  | { kind: "gone"; view: string }
  | { kind: "resync" }
  | { kind: "cancel"; ask: number; rows: number[] };

/** The widget's traits that this side reads. */
export interface Traits {
  snapshot: Snapshot;
}

export function isOver(status: Status): boolean {
  return status === "finished" || status === "cancelled" || status === "failed";
}
