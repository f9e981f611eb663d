// The view of one widget in one place of the page: rows, the line above them, the line below.

import type { Answer, Cancels } from "./cancel";
import { button, element, setText, show } from "./dom";
import { Roving } from "./roving";
import { RowView, tellOnButton } from "./row";
import type { Store } from "./store";
import { type Choice, isOver, type ToKernel } from "./wire";
import { LOST, spoken, summary, totalRate } from "./words";

export class StreamView {
  readonly root = element("div", "mlx-stream");
  #store: Store;
  #cancels: Cancels;
  #rows: RowView[] = [];
  #body = element("div", "mlx-rows");
  #title = element("b", "mlx-title");
  #summary = element("span", "mlx-dim");
  #rate = element("span", "mlx-dim mlx-figures");
  #cancelAll = button("mlx-cancel-all", "Cancel all");
  #head: HTMLElement;
  #foot = element("div", "mlx-foot");
  #spoken = element("span", "mlx-unseen");
  #columns = button("mlx-columns", "Side by side");
  /** This view's name in what it asks the kernel. */
  #name: string;
  #ask: (message: ToKernel) => void;
  #chosen: Choice;
  #roving: Roving;
  #dirty = new Set<number>();
  /** Rows that this view shows token by token. */
  #followed = new Set<number>();
  #all = true;
  #frame = 0;

  constructor(
    store: Store,
    cancels: Cancels,
    signal: AbortSignal,
    name: string,
    ask: (message: ToKernel) => void,
    chosen: Choice,
  ) {
    this.#name = name;
    this.#ask = ask;
    this.#chosen = chosen;
    this.#columns.dataset.stop = "button";
    this.#columns.title = "Put the answers beside each other";
    this.#columns.setAttribute("aria-pressed", "false");
    this.#columns.addEventListener("click", () => {
      const on = this.root.classList.toggle("mlx-side-by-side");
      this.#columns.setAttribute("aria-pressed", String(on));
    });
    this.#store = store;
    this.#cancels = cancels;
    this.#cancelAll.dataset.stop = "button";
    this.#head = element(
      "div",
      "mlx-head",
      this.#title,
      this.#summary,
      element("span", "mlx-space"),
      this.#rate,
      this.#cancelAll,
      this.#columns,
    );
    this.#spoken.setAttribute("role", "status");
    this.#spoken.setAttribute("aria-live", "polite");
    this.root.append(this.#head, this.#body, this.#foot, this.#spoken);
    this.root.setAttribute("role", "group");
    this.root.setAttribute("data-lm-suppress-shortcuts", "true");
    this.#roving = new Roving(this.root, signal);
    this.#cancelAll.addEventListener("click", () => this.#askAll(), { signal });
    signal.addEventListener(
      "abort",
      store.subscribe((row) => this.#changed(row)),
    );
    signal.addEventListener(
      "abort",
      store.subscribeTokens((row, n, facts) => this.#rows[row]?.tellToken(n, facts)),
    );
    signal.addEventListener("abort", () => cancelAnimationFrame(this.#frame));
    signal.addEventListener("abort", () => this.#unfollow());
    this.draw();
  }

  /** Draw now what changed since the last time. */
  draw(): void {
    const { rows, title, lost } = this.#store;
    const focused = this.#roving.focused();
    if (this.#rows.length !== rows.length) this.#make();
    rows.forEach((row, i) => {
      if (this.#all || this.#dirty.has(i)) this.#rows[i]?.update(row, !lost);
    });
    const chosen = this.#chosen.get();
    rows.forEach(({ id }, i) => {
      this.#rows[i]?.offerTokens(!lost);
      this.#rows[i]?.choose(id !== undefined && chosen.includes(id));
    });
    this.#all = false;
    this.#dirty.clear();
    const many = rows.length > 1;
    this.root.setAttribute("aria-label", `Live answers${title ? ` of ${title}` : ""}`);
    show(this.#head, many);
    this.root.toggleAttribute("data-lost", lost);
    show(this.#foot, lost || (!many && title !== ""));
    setText(this.#title, title);
    setText(this.#foot, lost ? LOST : title);
    setText(this.#summary, summary(rows));
    setText(this.#rate, totalRate(rows));
    show(this.#cancelAll, many && !lost && rows.some((row) => !isOver(row.status)));
    setText(this.#spoken, lost ? LOST : spoken(rows));
    this.#roving.refresh(focused);
  }

  /** Other rows are chosen than before. */
  chosenChanged(): void {
    this.#soon();
  }

  #changed(row: number | null): void {
    if (row === null) this.#all = true;
    else this.#dirty.add(row);
    this.#soon();
  }

  #soon(): void {
    // Many messages, one drawing a frame.
    if (!this.#frame) {
      this.#frame = requestAnimationFrame(() => {
        this.#frame = 0;
        this.draw();
      });
    }
  }

  #make(): void {
    this.#unfollow();
    this.#rows = this.#store.rows.map(
      (row, i) =>
        new RowView(row, {
          cancel: (tell) => this.#cancels.ask([i], tell),
          tokens: (on) => this.#follow(i, on),
          token: (n) => this.#ask({ kind: "token", row: i, n }),
          choose: () => this.#choose(row.id),
        }),
    );
    if (this.#store.rows.some(({ id }) => id !== undefined)) {
      this.#body.setAttribute("role", "grid");
      this.#body.setAttribute("aria-label", "answers");
      this.#body.setAttribute("aria-multiselectable", "true");
    }
    this.#body.replaceChildren(...this.#rows.map((row) => row.root));
  }

  #choose(id: number | undefined): void {
    if (id === undefined) return;
    const before = this.#chosen.get();
    this.#chosen.set(before.includes(id) ? before.filter((one) => one !== id) : [...before, id]);
    this.draw();
  }

  #follow(row: number, on: boolean): void {
    if (on) this.#followed.add(row);
    else this.#followed.delete(row);
    this.#store.follow(row, this.#name, on);
    this.#ask({ kind: "tokens", row, on, view: this.#name });
  }

  #unfollow(): void {
    for (const row of this.#followed) this.#store.follow(row, this.#name, false);
    this.#followed.clear();
  }

  #askAll(): void {
    if (this.#cancelAll.getAttribute("aria-disabled") === "true") return;
    const open = this.#store.rows.flatMap((row, i) => (isOver(row.status) ? [] : [i]));
    this.#cancels.ask(open, (answer: Answer) => {
      tellOnButton(this.#cancelAll, answer);
      for (const i of open) this.#rows[i]?.tell(answer);
    });
  }
}
