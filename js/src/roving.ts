// One tab stop for a whole view: Tab enters and leaves it, arrow keys walk inside.

/** Keeps exactly one of the view's stops in the tab order, and walks among them by arrow keys. */
export class Roving {
  #root: HTMLElement;
  #current: HTMLElement | null = null;

  constructor(root: HTMLElement, signal: AbortSignal) {
    this.#root = root;
    root.addEventListener("keydown", (event) => this.#onKey(event), { signal });
    root.addEventListener("focusin", (event) => this.#enter(event.target), { signal });
  }

  /** The stop that has the focus now, if one has. */
  focused(): HTMLElement | null {
    const active = document.activeElement;
    return active instanceof HTMLElement && this.#all().includes(active) ? active : null;
  }

  /**
   * To be called when stops came, went or were hidden. `focused` is the one that had the focus
   * before: if it is hidden now, a neighbour takes over, for a focus that falls off gives keys to the notebook.
   */
  refresh(focused: HTMLElement | null): void {
    const stops = this.#stops();
    if (!this.#current || !stops.includes(this.#current)) {
      this.#current = this.#neighbour(stops) ?? stops[0] ?? null;
    }
    if (focused?.hidden) this.#current?.focus();
    for (const stop of this.#all()) stop.tabIndex = stop === this.#current ? 0 : -1;
  }

  #all(): HTMLElement[] {
    return [...this.#root.querySelectorAll<HTMLElement>("[data-stop]")];
  }

  #stops(): HTMLElement[] {
    return this.#all().filter((stop) => !stop.hidden);
  }

  /** The stop beside the current one inside the row that it stood in, rather the one before it; else the row itself. */
  #neighbour(stops: HTMLElement[]): HTMLElement | undefined {
    const gone = this.#current;
    const row = gone?.closest<HTMLElement>(".mlx-row, [data-line]");
    if (!gone || !row) return undefined;
    const near = stops.filter((stop) => stop !== row && row.contains(stop));
    const before = near.filter(
      (stop) => gone.compareDocumentPosition(stop) & Node.DOCUMENT_POSITION_PRECEDING,
    );
    return before.at(-1) ?? near[0] ?? stops.find((stop) => stop === row);
  }

  #enter(target: EventTarget | null): void {
    const stop = target instanceof HTMLElement ? target.closest<HTMLElement>("[data-stop]") : null;
    if (stop && stop !== this.#current) {
      this.#current = stop;
      this.refresh(stop);
    }
  }

  #onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    // Keys of a focused view are its own: no front end may take "d d" on a button for deleting the cell.
    event.stopPropagation();
    // An element that took the key for itself (a chart's arrows) has had it.
    if (event.defaultPrevented) return;
    const stops = this.#stops();
    const here = this.#current ? stops.indexOf(this.#current) : -1;
    const to = this.#target(event.key, stops, here);
    if (to === undefined) return;
    event.preventDefault();
    stops[Math.max(0, Math.min(stops.length - 1, to))]?.focus();
  }

  /** Where a key leads. A "text" keeps up and down for scrolling, a "cursor" keeps left, right, Home and End. */
  #target(key: string, stops: HTMLElement[], here: number): number | undefined {
    const kind = this.#current?.dataset.stop;
    const sideways: Record<string, number> = { ArrowRight: here + 1, ArrowLeft: here - 1 };
    const upright: Record<string, number> = {
      ArrowDown: this.#otherLine(stops, here, 1),
      ArrowUp: this.#otherLine(stops, here, -1),
    };
    const ends: Record<string, number> = { Home: 0, End: stops.length - 1 };
    if (kind === "text") return sideways[key];
    if (kind === "cursor") return upright[key];
    return { ...sideways, ...upright, ...ends }[key];
  }

  /** Up and down in a table: the same place of the next line; elsewhere simply the next stop. */
  #otherLine(stops: HTMLElement[], here: number, way: 1 | -1): number {
    const line = stops[here]?.closest("[data-line]");
    if (!line) return here + way;
    const mates = stops.filter((stop) => line.contains(stop));
    let to = here + way;
    while (stops[to] && line.contains(stops[to] as Node)) to += way;
    const next = stops[to]?.closest("[data-line]");
    if (!next) return to;
    const there = stops.filter((stop) => next.contains(stop));
    const mate = there[Math.min(mates.indexOf(stops[here] as HTMLElement), there.length - 1)];
    return mate ? stops.indexOf(mate) : to;
  }
}
