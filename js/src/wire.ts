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
  /** The request's number. A row that came without one cannot be chosen: `selected` holds numbers. */
  id?: number;
  prompt: string;
  text: string;
  /** Only once the page asked for them: the text token by token, and probabilities where there are any. */
  tokens?: TokenTexts;
}

export interface TokenTexts {
  texts: string[];
  chances: (number | null)[];
}

/** Tokens `from` on. */
export interface TokenNews {
  from: number;
  texts: string[];
  chances: (number | null)[];
}

/** What the kernel knows of one token beside its text. Times in milliseconds; `shared` are other rows' numbers. */
export interface TokenFacts {
  step: number;
  ms: number | null;
  shared: number[];
  logprob: number | null;
  top: { text: string; logprob: number }[];
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
  tok?: TokenNews;
}

export type FromKernel =
  | { kind: "delta"; seq: number; rows: RowNews[] }
  | { kind: "ack"; ask: number }
  | { kind: "token"; row: number; n: number; facts: TokenFacts | null };

export type ToKernel =
  | { kind: "hello"; page: string }
  | { kind: "view"; page: string; view: string; on: boolean }
  | { kind: "visible"; view: string; on: boolean }
  | { kind: "selection"; view: string; active: boolean }
  | { kind: "gone"; view: string }
  | { kind: "resync" }
  | { kind: "cancel"; ask: number; rows: number[] }
  | { kind: "tokens"; row: number; on: boolean; view: string }
  | { kind: "token"; row: number; n: number };

/** The widget's traits: the kernel writes `snapshot`; `selected`, numbers of chosen rows, is both sides'. */
export interface Traits {
  snapshot: Snapshot;
  selected: number[];
}

/** The numbers of the rows that are chosen: the kernel has them too. */
export interface Choice {
  get(): number[];
  set(rows: number[]): void;
}

export function isOver(status: Status): boolean {
  return status === "finished" || status === "cancelled" || status === "failed";
}
