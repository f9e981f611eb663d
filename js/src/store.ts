// The rows as this page knows them: the last snapshot and the deltas since. No DOM here.

import type { RowNews, RowState, Snapshot, TokenFacts, TokenNews } from "./wire";

/** Told which row changed, or null when everything may have. */
export type Listener = (row: number | null) => void;

export class Store {
  rows: RowState[];
  title: string;
  final: boolean;
  /** Whether the kernel that fed these rows is gone. */
  lost = false;
  /** Whether texts can be had token by token. */
  traced: boolean;
  /** Told what the kernel knows of a token that was asked about. */
  onToken: (row: number, n: number, facts: TokenFacts | null) => void = () => {};
  #seq: number;
  #waitsForSnapshot = false;
  #listeners = new Set<Listener>();

  constructor(snapshot: Snapshot) {
    this.rows = snapshot.rows.map((row) => ({ ...row }));
    this.title = snapshot.title;
    this.final = snapshot.final;
    this.traced = snapshot.traced ?? false;
    this.#seq = snapshot.seq;
  }

  subscribe(listener: Listener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** The front end lost the kernel in the middle of the rows. A snapshot that comes after all says it is back. */
  lose(): void {
    if (this.final) return;
    this.lost = true;
    this.#tell(null);
  }

  /** The truth from the kernel. An older one than what we hold is ignored. */
  replace(snapshot: Snapshot): void {
    if (snapshot.seq < this.#seq && !this.#waitsForSnapshot) return;
    this.rows = snapshot.rows.map((row, i) => {
      const tokens = this.rows[i]?.tokens;
      return tokens ? { ...row, tokens } : { ...row };
    });
    this.title = snapshot.title;
    this.final = snapshot.final;
    this.traced = snapshot.traced ?? false;
    this.#seq = snapshot.seq;
    this.lost = false;
    this.#waitsForSnapshot = false;
    this.#tell(null);
  }

  /** What is new. False = something before it was lost: ask for a snapshot (once, then wait for it). */
  add(seq: number, news: RowNews[]): boolean {
    if (this.#waitsForSnapshot || seq <= this.#seq) return true;
    if (seq > this.#seq + 1) {
      this.#waitsForSnapshot = true;
      return false;
    }
    this.#seq = seq;
    for (const { i, add, tok, ...figures } of news) {
      const row = this.rows[i];
      if (!row) continue;
      Object.assign(row, figures);
      if (add) row.text += add;
      if (tok) addTokens(row, tok);
      this.#tell(i);
    }
    return true;
  }

  #tell(row: number | null): void {
    for (const listener of this.#listeners) listener(row);
  }
}

/** Tokens come by their number: what is there already is replaced, and a gap is left for the next asking. */
function addTokens(row: RowState, news: TokenNews): void {
  const kept = news.from === 0 ? { texts: [], chances: [] } : (row.tokens ?? { texts: [], chances: [] });
  if (news.from > kept.texts.length) return;
  row.tokens = {
    texts: [...kept.texts.slice(0, news.from), ...news.texts],
    chances: [...kept.chances.slice(0, news.from), ...news.chances],
  };
}
