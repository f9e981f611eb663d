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

  /** The first stop of the row that the current one stood in. */
  #neighbour(stops: HTMLElement[]): HTMLElement | undefined {
    const row = this.#current?.closest(".mlx-row");
    return stops.find((stop) => row?.contains(stop));
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
