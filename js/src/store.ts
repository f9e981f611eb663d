// The rows as this page knows them: the last snapshot and the deltas since. No DOM here.

import type { RowNews, RowState, Snapshot } from "./wire";

/** Told which row changed, or null when everything may have. */
export type Listener = (row: number | null) => void;

export class Store {
  rows: RowState[];
  title: string;
  final: boolean;
  /** Whether the kernel that fed these rows is gone. */
  lost = false;
  #seq: number;
  #waitsForSnapshot = false;
  #listeners = new Set<Listener>();

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

  /** The front end lost the kernel in the middle of the rows. A snapshot that comes after all says it is back. */
  lose(): void {
    if (this.final) return;
    this.lost = true;
    this.#tell(null);
  }

  /** The truth from the kernel. An older one than what we hold is ignored. */
  replace(snapshot: Snapshot): void {
    if (snapshot.seq < this.#seq && !this.#waitsForSnapshot) return;
    this.rows = snapshot.rows.map((row) => ({ ...row }));
    this.title = snapshot.title;
    this.final = snapshot.final;
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
    for (const { i, add, ...figures } of news) {
      const row = this.rows[i];
      if (!row) continue;
      Object.assign(row, figures);
      if (add) row.text += add;
      this.#tell(i);
    }
    return true;
  }

  #tell(row: number | null): void {
    for (const listener of this.#listeners) listener(row);
  }
}
