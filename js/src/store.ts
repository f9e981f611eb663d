// The rows as this page knows them: the last snapshot and the deltas since. No DOM here.

import type { RowNews, RowState, Snapshot, TokenFacts, TokenNews } from "./wire";

/** Told which row changed, or null when everything may have. */
export type Listener = (row: number | null) => void;

/** Told what the kernel knows of a row's n-th token (from 1) that some view asked about. */
export type TokenListener = (row: number, n: number, facts: TokenFacts | null) => void;

export class Store {
  rows: RowState[];
  title: string;
  final: boolean;
  /** Whether the kernel that fed these rows is gone. */
  lost = false;
  /** Asks for a row's tokens from its first on, for one of the views that show them. */
  askTokens: (row: number, view: string) => void = () => {};
  /** Which views show a row token by token; and of which rows the tokens from the first on are awaited. */
  #followers = new Map<number, Set<string>>();
  #awaited = new Set<number>();
  #seq: number;
  #waitsForSnapshot = false;
  #listeners = new Set<Listener>();
  #tokenListeners = new Set<TokenListener>();

  constructor(snapshot: Snapshot) {
    this.rows = snapshot.rows.map((row) => ({ ...row }));
    this.title = snapshot.title;
    this.final = snapshot.final;
    this.#seq = snapshot.seq;
  }

  subscribe(listener: Listener): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** A store has many views: each hears of every token, and knows which one its reader points at. */
  subscribeTokens(listener: TokenListener): () => void {
    this.#tokenListeners.add(listener);
    return () => this.#tokenListeners.delete(listener);
  }

  tellToken(row: number, n: number, facts: TokenFacts | null): void {
    for (const listener of this.#tokenListeners) listener(row, n, facts);
  }

  /** The front end lost the kernel in the middle of the rows. A snapshot that comes after all says it is back. */
  lose(): void {
    if (this.final) return;
    this.lost = true;
    this.#tell(null);
  }

  /** A view shows a row token by token from now on, or no longer. Asking for them is the view's. */
  follow(row: number, view: string, on: boolean): void {
    const views = this.#followers.get(row) ?? new Set();
    if (on) views.add(view);
    else views.delete(view);
    this.#followers.set(row, views);
    this.#awaited.delete(row);
  }

  /** The truth from the kernel. An older one than what we hold is ignored. */
  replace(snapshot: Snapshot): void {
    if (snapshot.seq < this.#seq && !this.#waitsForSnapshot) return;
    // A snapshot makes texts whole, but it holds no tokens: those of the lost messages are to be asked for.
    const lost = this.#waitsForSnapshot || snapshot.seq > this.#seq;
    this.rows = snapshot.rows.map((row, i) => {
      const tokens = this.rows[i]?.tokens;
      return tokens ? { ...row, tokens } : { ...row };
    });
    this.title = snapshot.title;
    this.final = snapshot.final;
    this.#seq = snapshot.seq;
    this.lost = false;
    this.#waitsForSnapshot = false;
    if (lost) {
      this.#awaited.clear();
      for (const row of this.#followers.keys()) this.#askAnew(row);
    }
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
      if (tok && addTokens(row, tok)) this.#awaited.delete(i);
      else if (tok) this.#askAnew(i);
      this.#tell(i);
    }
    return true;
  }

  /** Once, till they come: what arrives meanwhile has the same gap before it. */
  #askAnew(row: number): void {
    const [view] = this.#followers.get(row) ?? [];
    if (view === undefined || this.#awaited.has(row)) return;
    this.#awaited.add(row);
    this.askTokens(row, view);
  }

  #tell(row: number | null): void {
    for (const listener of this.#listeners) listener(row);
  }
}

/** Tokens come by their number, and replace what is there from it on. False = some before them are missing. */
export function addTokens(row: RowState, news: TokenNews): boolean {
  const kept = news.from === 0 ? { texts: [], chances: [] } : (row.tokens ?? { texts: [], chances: [] });
  if (news.from > kept.texts.length) return false;
  row.tokens = {
    texts: [...kept.texts.slice(0, news.from), ...news.texts],
    chances: [...kept.chances.slice(0, news.from), ...news.chances],
  };
  return true;
}
