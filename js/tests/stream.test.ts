import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import widget from "../src/stream";
import { FakeModel, lastAsk, row, snapshot } from "./help";

let frames: FrameRequestCallback[] = [];

function nextFrame(): void {
  const due = frames;
  frames = [];
  for (const callback of due) callback(0);
}

/** A widget on a page: its model, its place, and what the front end would call. */
async function shown(rows = [row()], changes = {}) {
  const model = new FakeModel({ snapshot: snapshot(rows, changes), selected: [] as number[] });
  const controller = new AbortController();
  const def = await widget();
  const props = { model: model.asModel(), signal: controller.signal };
  def.initialize?.({ ...props, experimental: {} as never });
  const el = document.createElement("div");
  document.body.append(el);
  const remove = def.render?.({ ...props, el, host: {} as never, experimental: {} as never });
  return { model, el, remove: remove as () => void };
}

function buttons(el: HTMLElement): string[] {
  return [...el.querySelectorAll("button")]
    .filter((b) => !b.hidden && b.textContent !== "Side by side")
    .map((b) => b.textContent ?? "");
}

function find(el: HTMLElement, text: string): HTMLButtonElement {
  const found = [...el.querySelectorAll("button")].find((b) => b.textContent === text && !b.hidden);
  if (!found) throw new Error(`no button ${text}`);
  return found;
}

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("requestAnimationFrame", (callback: FrameRequestCallback) => frames.push(callback));
  vi.stubGlobal("cancelAnimationFrame", () => undefined);
});

afterEach(() => {
  document.body.replaceChildren();
  frames = [];
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

describe("the wire", () => {
  it("says hello for the model and shows itself for each view", async () => {
    const { model, remove } = await shown();
    const [hello, view] = model.sent;
    expect(hello?.kind).toBe("hello");
    expect(view).toMatchObject({ kind: "view", on: true });
    remove();
    expect(model.sent.at(-1)).toEqual({ kind: "gone", view: view && "view" in view ? view.view : "" });
  });

  it("asks for a snapshot on a gap, once", async () => {
    const { model, el } = await shown();
    model.says({ kind: "delta", seq: 2, rows: [{ i: 0, add: "b" }] });
    model.says({ kind: "delta", seq: 3, rows: [{ i: 0, add: "c" }] });
    expect(model.sent.filter(({ kind }) => kind === "resync")).toHaveLength(1);
    model.set("snapshot", snapshot([row({ text: "abc" })], { seq: 3 }));
    nextFrame();
    expect(el.querySelector(".mlx-text")?.textContent).toBe("abc");
  });

  it("draws once a frame, however many messages came", async () => {
    const { model, el } = await shown();
    for (let i = 1; i <= 50; i++) model.says({ kind: "delta", seq: i, rows: [{ i: 0, add: `${i} ` }] });
    expect(frames).toHaveLength(1);
    nextFrame();
    expect(el.querySelector(".mlx-text")?.textContent).toMatch(/^1 2 .*50 $/);
  });

  it("survives a kernel that is gone", async () => {
    const { model, el, remove } = await shown([row({ text: "half" })]);
    model.broken = true;
    model.emit("comm_live_update");
    nextFrame();
    expect(el.querySelector(".mlx-foot")?.textContent).toContain("The kernel is gone");
    expect(buttons(el)).toEqual(["Copy"]);
    expect(() => remove()).not.toThrow();
  });

  it("stops listening to the model of a view that went", async () => {
    const { model, el, remove } = await shown();
    remove();
    model.says({ kind: "delta", seq: 1, rows: [{ i: 0, add: "x" }] });
    expect(frames).toHaveLength(0);
    expect(el.querySelector(".mlx-text")?.textContent).toBe("");
  });
});

describe("text", () => {
  it("is text, whatever is in it", async () => {
    const hostile = "<img src=x onerror=alert(1)> <script>alert(2)</script>\n\u202e end";
    const { el } = await shown(
      [row({ text: hostile, prompt: "<b>p</b>", note: "<i>n</i>", waiting: "<u>w</u>" })],
      {
        title: "<h1>t</h1>",
      },
    );
    expect(el.querySelector(".mlx-text")?.textContent).toBe(hostile);
    expect(el.querySelectorAll("img, script, h1, u, .mlx-prompt b, .mlx-note i")).toHaveLength(0);
    expect(el.querySelector(".mlx-foot")?.textContent).toBe("<h1>t</h1>");
  });

  it("grows in place, so that a selection in it lives on", async () => {
    const { model, el } = await shown([row({ text: "hello" })]);
    const node = el.querySelector(".mlx-text")?.firstChild;
    model.says({ kind: "delta", seq: 1, rows: [{ i: 0, add: " there" }] });
    nextFrame();
    expect(el.querySelector(".mlx-text")?.firstChild).toBe(node);
    expect(node?.textContent).toBe("hello there");
    model.set("snapshot", snapshot([row({ text: "hello there!" })], { seq: 1 }));
    nextFrame();
    expect(el.querySelector(".mlx-text")?.firstChild).toBe(node);
  });

  it("is followed only by a reader who is at its end", async () => {
    const { model, el } = await shown([row({ text: "x" })]);
    const box = el.querySelector(".mlx-text") as HTMLElement;
    let height = 500;
    Object.defineProperties(box, { scrollHeight: { get: () => height }, clientHeight: { get: () => 100 } });
    box.scrollTop = 400;
    const add = (seq: number) => {
      model.says({ kind: "delta", seq, rows: [{ i: 0, add: "\nmore" }] });
      const node = box.firstChild as Text;
      const append = node.appendData.bind(node);
      node.appendData = (data) => {
        append(data);
        height += 50;
      };
      nextFrame();
      node.appendData = append;
    };
    add(1);
    expect(box.scrollTop).toBe(550);
    box.scrollTop = 100;
    add(2);
    expect(box.scrollTop).toBe(100);
  });

  it("tells a selection and its end, also when the page goes", async () => {
    const { model, el } = await shown([row({ text: "hello" })]);
    const selections = () =>
      model.sent.filter((m) => m.kind === "selection").map((m) => "active" in m && m.active);
    document.getSelection()?.selectAllChildren(el.querySelector(".mlx-text") as Node);
    document.dispatchEvent(new Event("selectionchange"));
    document.dispatchEvent(new Event("selectionchange"));
    expect(selections()).toEqual([true]);
    window.dispatchEvent(new Event("pagehide"));
    expect(selections()).toEqual([true, false]);
    document.getSelection()?.removeAllRanges();
  });
});

describe("cancelling", () => {
  it("asks for the row, and is quiet once the kernel heard", async () => {
    const { model, el } = await shown([row(), row(), row({ status: "finished" })]);
    expect(buttons(el)).toEqual(["Cancel all", "Cancel", "Cancel"]);
    const second = [...el.querySelectorAll<HTMLButtonElement>(".mlx-cancel")][1] as HTMLButtonElement;
    second.click();
    expect(model.sent.at(-1)).toEqual({ kind: "cancel", ask: lastAsk(model.sent), rows: [1] });
    expect(second.textContent).toBe("Cancelling…");
    second.click();
    expect(model.sent.filter((m) => m.kind === "cancel")).toHaveLength(1);
    model.says({ kind: "ack", ask: lastAsk(model.sent) });
    vi.advanceTimersByTime(10_000);
    expect(second.textContent).toBe("Cancelling…");
  });

  it("says to use the stop button when nobody answers in half a second, and takes it back when one does", async () => {
    const { model, el } = await shown([row()]);
    const button = find(el, "Cancel");
    button.click();
    vi.advanceTimersByTime(499);
    expect(button.textContent).toBe("Cancelling…");
    vi.advanceTimersByTime(1);
    expect(button.textContent).toBe("No answer: use ■ (interrupt)");
    expect(button.title).toContain("Interrupt the kernel");
    model.says({ kind: "ack", ask: lastAsk(model.sent) });
    expect(button.textContent).toBe("Cancelling…");
  });

  it("cancels all that still run", async () => {
    const { model, el } = await shown([row({ status: "failed" }), row({ status: "queued" }), row()]);
    find(el, "Cancel all").click();
    expect(model.sent.at(-1)).toMatchObject({ kind: "cancel", rows: [1, 2] });
    model.says({ kind: "delta", seq: 1, rows: [{ i: 1, status: "cancelled" }] });
    model.says({ kind: "delta", seq: 2, rows: [{ i: 2, status: "cancelled" }] });
    nextFrame();
    expect(buttons(el)).toEqual([]);
  });
});

describe("the keyboard", () => {
  it("has one tab stop, walked by arrows, and keeps its keys", async () => {
    const { el } = await shown([row({ text: "a" }), row({ text: "b" })]);
    const root = el.querySelector(".mlx-stream") as HTMLElement;
    expect(root.dataset.lmSuppressShortcuts).toBe("true");
    const outside = vi.fn();
    document.addEventListener("keydown", outside);
    const stop = () => [...root.querySelectorAll<HTMLElement>("[tabindex='0']")];
    const press = (key: string, more = {}) =>
      document.activeElement?.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, ...more }));
    expect(stop().map((s) => s.textContent)).toEqual(["Cancel all"]);
    stop()[0]?.focus();
    press("ArrowRight");
    expect(document.activeElement?.textContent).toBe("Side by side");
    press("ArrowRight");
    expect(document.activeElement?.textContent).toBe("Tokens");
    press("ArrowRight");
    expect(document.activeElement?.textContent).toBe("Copy");
    press("End");
    expect(document.activeElement?.className).toBe("mlx-text");
    press("ArrowUp"); // scrolls the text
    expect(document.activeElement?.className).toBe("mlx-text");
    press("ArrowLeft");
    press("d");
    expect(document.activeElement?.textContent).toBe("Cancel");
    expect(stop()).toEqual([document.activeElement]);
    expect(outside).not.toHaveBeenCalled();
    press("s", { ctrlKey: true });
    expect(outside).toHaveBeenCalledTimes(1);
    document.removeEventListener("keydown", outside);
  });

  it("hands the focus on when its button goes", async () => {
    const { model, el } = await shown([row({ text: "a" })]);
    find(el, "Cancel").focus();
    model.says({ kind: "delta", seq: 1, rows: [{ i: 0, status: "finished" }] });
    nextFrame();
    expect(document.activeElement?.textContent).toBe("Copy");
  });

  it("takes no focus that it had not", async () => {
    const { model, el } = await shown([row({ text: "a" })]);
    model.says({ kind: "delta", seq: 1, rows: [{ i: 0, status: "finished" }] });
    nextFrame();
    expect(document.activeElement).toBe(document.body);
    expect(el.querySelectorAll("[tabindex='0']")).toHaveLength(1);
  });
});

describe("copying", () => {
  it("copies the row's text, and says if it may not", async () => {
    const writeText = vi.fn().mockResolvedValue(undefined);
    vi.stubGlobal("navigator", { clipboard: { writeText } });
    const { el } = await shown([row({ text: "a < b" })]);
    find(el, "Copy").click();
    await vi.advanceTimersByTimeAsync(0);
    expect(writeText).toHaveBeenCalledWith("a < b");
    expect(buttons(el)).toContain("Copied");
    await vi.advanceTimersByTimeAsync(1500);
    writeText.mockRejectedValue(new Error("denied"));
    document.execCommand = () => false;
    find(el, "Copy").click();
    await vi.advanceTimersByTimeAsync(0);
    expect(buttons(el)).toContain("Not allowed here");
    expect(el.querySelector("textarea")).toBeNull();
  });

  it("falls back to a selection, inside the view, and gives the focus back", async () => {
    vi.stubGlobal("navigator", {});
    const { el } = await shown([row({ text: "a < b" })]);
    let copied = "";
    document.execCommand = () => {
      copied = (document.activeElement as HTMLTextAreaElement).value;
      expect(el.contains(document.activeElement)).toBe(true);
      return true;
    };
    const button = find(el, "Copy");
    button.focus();
    button.click();
    await vi.advanceTimersByTimeAsync(0);
    expect(copied).toBe("a < b");
    expect(document.activeElement).toBe(button);
  });
});

describe("a text token by token", () => {
  const spans = (el: HTMLElement) =>
    [...el.querySelectorAll(".mlx-tokens span")].map((one) => one.textContent);
  const news = (from: number, ...texts: string[]) => ({ from, texts, chances: texts.map(() => null) });

  it("is asked for by its button, and again when a message was lost", async () => {
    const { model, el, remove } = await shown([row({ text: "a" })]);
    const asks = () => model.sent.filter(({ kind }) => kind === "tokens");
    find(el, "Tokens").click();
    const shownBy = model.sent.flatMap((one) => (one.kind === "view" ? [one.view] : []))[0] as string;
    const asking = { kind: "tokens", row: 0, on: true, view: shownBy };
    expect(asks()).toEqual([asking]);
    model.says({ kind: "delta", seq: 1, rows: [{ i: 0, tok: news(0, "a") }] });
    model.says({ kind: "delta", seq: 3, rows: [{ i: 0, add: "c", tok: news(2, "c") }] });
    model.set("snapshot", snapshot([row({ text: "abc" })], { seq: 3 }));
    expect(asks().slice(1)).toEqual([asking]);
    model.says({ kind: "delta", seq: 4, rows: [{ i: 0, tok: news(0, "a", "b", "c") }] });
    nextFrame();
    expect(spans(el)).toEqual(["a", "b", "c"]);
    remove();
    model.set("snapshot", snapshot([row({ text: "abc" })], { seq: 9 }));
    expect(asks()).toHaveLength(2);
  });

  it("is whole when the end comes with its last tokens in one frame", async () => {
    const { model, el } = await shown([row({ text: "a" })]);
    find(el, "Tokens").click();
    model.says({ kind: "delta", seq: 1, rows: [{ i: 0, tok: news(0, "a") }] });
    nextFrame();
    model.says({
      kind: "delta",
      seq: 2,
      rows: [{ i: 0, status: "finished", add: "b!", tok: news(1, "b", "!") }],
    });
    const done = row({ text: "ab!", status: "finished" });
    model.set("snapshot", snapshot([done], { seq: 2, final: true }));
    nextFrame();
    expect(spans(el)).toEqual(["a", "b", "!"]);
  });
});

describe("two places of one widget", () => {
  const facts = { step: 7, ms: 4.25, shared: [], logprob: null, top: [] };

  async function twoPlaces() {
    const model = new FakeModel({
      snapshot: snapshot([row({ text: "ab" })]),
      selected: [] as number[],
    });
    const signal = new AbortController().signal;
    const def = await widget();
    const props = { model: model.asModel(), signal, host: {} as never, experimental: {} as never };
    def.initialize?.(props);
    const places = [0, 1].map(() => {
      const el = document.createElement("div");
      document.body.append(el);
      return { el, remove: def.render?.({ ...props, el }) as () => void };
    });
    model.says({ kind: "delta", seq: 1, rows: [{ i: 0, tok: { from: 0, texts: ["a", "b"], chances: [] } }] });
    return { model, places };
  }

  const point = (el: HTMLElement, n: number) =>
    el
      .querySelectorAll(".mlx-tokens span")
      [n]?.dispatchEvent(new MouseEvent("pointerover", { bubbles: true }));
  const said = (el: HTMLElement) => el.querySelector(".mlx-token-facts")?.textContent;

  it("each tell of the token that is pointed at there", async () => {
    const { model, places } = await twoPlaces();
    for (const { el } of places) {
      find(el, "Tokens").click();
      point(el, 1);
      vi.advanceTimersByTime(200);
      expect(model.sent.at(-1)).toEqual({ kind: "token", row: 0, n: 2 });
      model.says({ kind: "token", row: 0, n: 2, facts });
      expect(said(el)).toContain("came 4.3 ms after the token before · step 7");
      el.querySelector(".mlx-tokens")?.dispatchEvent(new MouseEvent("pointerleave"));
    }
    const [first] = places;
    point(first?.el as HTMLElement, 1);
    model.says({ kind: "token", row: 0, n: 2, facts });
    expect(said(first?.el as HTMLElement)).toContain("step 7");
  });

  it("say which of them wants tokens no longer", async () => {
    const { model, places } = await twoPlaces();
    for (const { el } of places) find(el, "Tokens").click();
    find(places[0]?.el as HTMLElement, "Tokens").click();
    const asks = model.sent.flatMap((one) => (one.kind === "tokens" ? [one] : []));
    const views = model.sent.flatMap((one) => (one.kind === "view" ? [one.view] : []));
    expect(asks.map(({ view, on }) => [view, on])).toEqual([
      [views[0], true],
      [views[1], true],
      [views[0], false],
    ]);
  });
});

describe("visibility", () => {
  it("is told when the page goes to the background and comes back, once each", async () => {
    const { model } = await shown();
    const turns = () => model.sent.filter((m) => m.kind === "visible").map((m) => "on" in m && m.on);
    const state = vi.spyOn(document, "visibilityState", "get");
    for (const value of ["hidden", "hidden", "visible"] as const) {
      state.mockReturnValue(value);
      document.dispatchEvent(new Event("visibilitychange"));
    }
    expect(turns()).toEqual([false, true]);
    state.mockRestore();
  });
});
