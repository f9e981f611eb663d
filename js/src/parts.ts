// Parts that the dashboard and the timeline share: a figure, a legend, a once-a-frame drawer, a page's presence.

import type { AnyModel } from "@anywidget/types";
import type { FromKernel, ToKernel, Traits } from "./boardwire";
import { element, setText } from "./dom";
import { askUntilHeard, pageIsSeen, watch } from "./presence";

/** Another load of the page, or another frame of it, has another time of origin. */
export const page = String(performance.timeOrigin);

let views = 0;

/**
 * Tells the kernel of a view in this page for as long as it lives. A page that goes takes its views with it, else the
 * kernel would hold back what they paused for ever; one that the browser kept and shows again brings them back.
 * (A stream's view says no such thing: its widget must outlive a reload, which closing would take from it.)
 */
export function present(
  model: AnyModel<Traits>,
  root: HTMLElement,
  signal: AbortSignal,
  history: () => "here" | "coming" | "silent",
): void {
  views += 1;
  const view = `${page}/${views}`;
  const send = (message: ToKernel) => {
    try {
      model.send(message);
    } catch (error) {
      console.debug("mlx-notebook: the kernel cannot be reached", error);
    }
  };
  let told = false;
  const come = () => {
    told = true;
    send({ kind: "view", page, view, on: pageIsSeen() });
  };
  const go = () => {
    if (told) send({ kind: "gone", view });
    told = false;
  };
  const comeAgain = () => {
    send({ kind: "hello", page, buffers: false });
    come();
  };
  // Another page came: the kernel takes it for a reload of this one, unless this one says that it is still there.
  const answer = (message: FromKernel) => {
    if (message.kind === "who" && told) send({ kind: "here", view });
  };
  model.on("msg:custom", answer);
  signal.addEventListener("abort", () => model.off("msg:custom", answer));
  come();
  askUntilHeard(history, comeAgain, signal);
  watch(
    root,
    {
      visible: (on) => send({ kind: "visible", view, on }),
      selection: (active) => send({ kind: "selection", view, active }),
    },
    signal,
  );
  window.addEventListener("pagehide", go, { signal });
  window.addEventListener(
    "pageshow",
    (event) => {
      if (event.persisted) comeAgain();
    },
    { signal },
  );
  signal.addEventListener("abort", go);
}

/** "4 of 8 places": a value that stands out, words around it, and what it means when pointed at. */
export class Figure {
  readonly root: HTMLElement;
  #value = element("b", "mlx-num");
  #after = element("span", "mlx-dim");

  constructor(before: string, meaning: string, ...more: HTMLElement[]) {
    this.root = element(
      "span",
      "mlx-num",
      element("span", "mlx-dim", before),
      this.#value,
      this.#after,
      ...more,
    );
    this.root.title = meaning;
  }

  set(value: string, after: string): void {
    setText(this.#value, value);
    setText(this.#after, after);
  }
}

export function legend(entries: [string, string][], signs: [string, string, string][]): HTMLElement {
  const made = element("div", "mlx-legend");
  made.setAttribute("role", "note");
  made.setAttribute("aria-label", "what the marks mean");
  for (const [swatch, words] of entries) {
    const mark = element("i", `mlx-swatch ${swatch}`);
    mark.setAttribute("aria-hidden", "true");
    made.append(element("span", "", mark, words));
  }
  for (const [status, sign, words] of signs) {
    const mark = element("span", "mlx-sign", sign);
    const entry = element("span", "", mark, words);
    entry.dataset.status = status;
    made.append(entry);
  }
  return made;
}

/** A table's head: each cell's words, classes, and what it means when pointed at ("" where the words say it). */
export function tableHead(cells: [string, string, string][]): HTMLElement {
  const row = element("tr", "");
  for (const [words, name, meaning] of cells) {
    const cell = element("th", name, words);
    cell.scope = "col";
    if (meaning) cell.title = meaning;
    row.append(cell);
  }
  return element("thead", "", row);
}

/**
 * Many reasons to draw, one drawing a frame, and a rest between two: at least `interval` milliseconds, and
 * longer where drawing takes long, so that a page under load keeps answering its reader.
 */
export class Drawer {
  #frame = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #next = 0;
  #interval: number;
  #draw: () => void;

  constructor(draw: () => void, signal: AbortSignal, interval = 0) {
    this.#draw = draw;
    this.#interval = interval;
    signal.addEventListener("abort", () => {
      cancelAnimationFrame(this.#frame);
      clearTimeout(this.#timer);
    });
  }

  soon(): void {
    if (this.#frame || this.#timer !== undefined) return;
    const rest = this.#next - performance.now();
    if (rest <= 0) this.#ask();
    else
      this.#timer = setTimeout(() => {
        this.#timer = undefined;
        this.#ask();
      }, rest);
  }

  #ask(): void {
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      const began = performance.now();
      this.#draw();
      const ended = performance.now();
      this.#next = ended + Math.max(this.#interval, 3 * (ended - began));
    });
  }
}

/** Calls when the element's width or the page's theme changes. */
export function onLook(root: HTMLElement, change: () => void, signal: AbortSignal): void {
  if (typeof ResizeObserver !== "undefined") {
    const sizes = new ResizeObserver(change);
    sizes.observe(root);
    signal.addEventListener("abort", () => sizes.disconnect());
  }
  const themes = new MutationObserver(change);
  for (const node of [document.body, document.documentElement])
    themes.observe(node, { attributes: true, attributeFilter: ["data-jp-theme-light", "class", "theme"] });
  signal.addEventListener("abort", () => themes.disconnect());
  if (typeof matchMedia !== "undefined")
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", change, { signal });
}

/** A cell whose text is compared in memory: reading the page for it would cost more than writing. */
export class Cell {
  readonly root: HTMLTableCellElement;
  #text = "";
  #into: HTMLElement;

  constructor(className: string, into?: HTMLElement) {
    this.root = element("td", className);
    this.#into = into ?? this.root;
    if (into) this.root.append(into);
  }

  set(text: string): void {
    if (text === this.#text) return;
    this.#text = text;
    this.#into.textContent = text;
  }
}
