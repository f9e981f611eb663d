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

  /** To be called when stops came, went or were hidden. A hidden stop that had the focus hands it on. */
  refresh(): void {
    const stops = this.#stops();
    const lost = this.#current !== null && !stops.includes(this.#current);
    if (this.#current === null || lost) {
      const hadFocus = lost && this.#current === document.activeElement;
      const next = (lost && this.#neighbour(stops)) || stops[0] || null;
      this.#current = next;
      if (hadFocus) next?.focus();
    }
    for (const stop of this.#all()) stop.tabIndex = stop === this.#current ? 0 : -1;
  }

  #all(): HTMLElement[] {
    return [...this.#root.querySelectorAll<HTMLElement>("[data-stop]")];
  }

  #stops(): HTMLElement[] {
    return this.#all().filter((stop) => !stop.hidden);
  }

  /** The stop that follows, in the page's order, where the current one stood; else the one before. */
  #neighbour(stops: HTMLElement[]): HTMLElement | null {
    const gone = this.#current;
    if (!gone) return null;
    const row = gone.closest(".mlx-row");
    return stops.find((stop) => row?.contains(stop)) ?? null;
  }

  #enter(target: EventTarget | null): void {
    const stop = target instanceof HTMLElement ? target.closest<HTMLElement>("[data-stop]") : null;
    if (stop && stop !== this.#current) {
      this.#current = stop;
      this.refresh();
    }
  }

  #onKey(event: KeyboardEvent): void {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    // Keys of a focused view are its own: no front end may take "d d" on a button for deleting the cell.
    event.stopPropagation();
    const stops = this.#stops();
    const here = this.#current ? stops.indexOf(this.#current) : -1;
    const scrolls = this.#current?.dataset.stop === "text";
    const move: Record<string, number> = {
      ArrowRight: here + 1,
      ArrowLeft: here - 1,
      ...(scrolls ? {} : { ArrowDown: here + 1, ArrowUp: here - 1, Home: 0, End: stops.length - 1 }),
    };
    const to = move[event.key];
    if (to === undefined) return;
    event.preventDefault();
    stops[Math.max(0, Math.min(stops.length - 1, to))]?.focus();
  }
}
