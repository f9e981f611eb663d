// Tells the kernel whether a view can be seen, and whether a reader has a selection in it.

const ASK_MS = 1000;
const ASK_TIMES = 120;

/**
 * Asks every second while nothing is heard, till all is here. The first messages of a page may wait behind a cell
 * that blocks: the front end opens a line of their own for them (a subshell) only once they are on their way.
 */
export function askUntilHeard(
  state: () => "here" | "coming" | "silent",
  ask: () => void,
  signal: AbortSignal,
): void {
  let left = ASK_TIMES;
  const again = setInterval(() => {
    const now = state();
    if (now === "here" || left === 0) clearInterval(again);
    if (now !== "silent" || left === 0) return;
    left -= 1;
    ask();
  }, ASK_MS);
  signal.addEventListener("abort", () => clearInterval(again));
}

export interface Presence {
  visible(on: boolean): void;
  selection(active: boolean): void;
}

/** Watches `root` until `signal` aborts. A view that cannot be seen is told so by exactly one message. */
export function watch(root: HTMLElement, tell: Presence, signal: AbortSignal): void {
  watchVisibility(root, (on) => tell.visible(on), signal);
  watchSelection(root, (active) => tell.selection(active), signal);
}

/** Whether the page itself is in the background. */
export function pageIsSeen(): boolean {
  return document.visibilityState !== "hidden";
}

function watchVisibility(root: HTMLElement, tell: (on: boolean) => void, signal: AbortSignal): void {
  let onScreen = true;
  let told = pageIsSeen();
  const check = () => {
    const on = onScreen && pageIsSeen();
    if (on !== told) {
      told = on;
      tell(on);
    }
  };
  document.addEventListener("visibilitychange", check, { signal });
  if (typeof IntersectionObserver === "undefined") return;
  const observer = new IntersectionObserver((entries) => {
    onScreen = entries.at(-1)?.isIntersecting ?? onScreen;
    check();
  });
  observer.observe(root);
  signal.addEventListener("abort", () => observer.disconnect());
}

function watchSelection(root: HTMLElement, tell: (active: boolean) => void, signal: AbortSignal): void {
  let told = false;
  const change = (active: boolean) => {
    if (active !== told) {
      told = active;
      tell(active);
    }
  };
  document.addEventListener("selectionchange", () => change(hasSelection(root)), { signal });
  // A page that goes away takes its selection with it.
  window.addEventListener("pagehide", () => change(false), { signal });
}

function hasSelection(root: HTMLElement): boolean {
  const selection = document.getSelection();
  if (!selection || selection.isCollapsed) return false;
  return Array.from({ length: selection.rangeCount }, (_, i) => selection.getRangeAt(i)).some((range) =>
    range.intersectsNode(root),
  );
}
