import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import widget from "../src/stream";
import type { RowState } from "../src/wire";
import { FakeModel, row, snapshot } from "./help";

let frames: (() => void)[] = [];

const nextFrame = () => {
  for (const draw of frames.splice(0)) draw();
};

/** A stream in the page, in which these rows are chosen. */
async function shown(rows: RowState[], selected: number[] = []) {
  const model = new FakeModel({ snapshot: snapshot(rows), selected });
  const signal = new AbortController().signal;
  const made = await widget();
  const el = document.createElement("div");
  document.body.append(el);
  const props = { model: model.asModel(), signal, el, host: {} as never, experimental: {} as never };
  made.initialize?.(props);
  const remove = made.render?.(props) as () => void;
  const lines = [...el.querySelectorAll<HTMLElement>(".mlx-row")];
  const press = (key: string, more = {}) =>
    document.activeElement?.dispatchEvent(
      new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more }),
    );
  return {
    model,
    el,
    lines,
    press,
    remove,
    marks: () => lines.map((one) => one.getAttribute("aria-selected")),
  };
}

const three = () => [1, 2, 3].map((n) => row({ id: 10 + n, text: `answer ${n}` }));

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("requestAnimationFrame", (draw: () => void) => frames.push(draw));
  vi.stubGlobal("cancelAnimationFrame", () => undefined);
});

afterEach(() => {
  document.body.replaceChildren();
  document.getSelection()?.removeAllRanges();
  frames = [];
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

describe("choosing rows of a stream", () => {
  it("is done by a click on a row's head, and undone by another; the kernel hears their numbers", async () => {
    const { model, lines, marks } = await shown(three());
    const head = (i: number) => lines[i]?.querySelector<HTMLElement>(".mlx-prompt");
    head(1)?.click();
    head(0)?.click();
    expect(model.traits.selected).toEqual([12, 11]);
    expect(marks()).toEqual(["true", "true", "false"]);
    head(1)?.click();
    expect(model.traits.selected).toEqual([11]);
    expect(marks()).toEqual(["true", "false", "false"]);
    expect(model.saved).toBe(3);
  });

  it("is done by Enter and Space on the row that has the focus", async () => {
    const { model, lines, press } = await shown(three());
    lines[0]?.focus();
    expect(document.activeElement).toBe(lines[0]);
    press("Enter");
    press("ArrowDown");
    expect(document.activeElement).toBe(lines[1]);
    press(" ");
    expect(model.traits.selected).toEqual([11, 12]);
    press("Enter", { ctrlKey: true }); // the notebook's own key
    expect(model.traits.selected).toEqual([11, 12]);
    press("Enter");
    expect(model.traits.selected).toEqual([11]);
  });

  it("is none of the business of a row's buttons and text", async () => {
    const { model, lines, press } = await shown(three());
    lines[0]?.querySelector<HTMLElement>(".mlx-cancel")?.click();
    lines[0]?.querySelector<HTMLElement>(".mlx-text")?.click();
    lines[0]?.querySelector<HTMLElement>(".mlx-copy")?.focus();
    press("Enter");
    document.getSelection()?.selectAllChildren(lines[0]?.querySelector(".mlx-prompt") as Node);
    lines[0]?.querySelector<HTMLElement>(".mlx-prompt")?.click();
    expect(model.traits.selected).toEqual([]);
  });

  it("is done from Python too, before and after", async () => {
    const { model, marks, remove } = await shown(three(), [13]);
    expect(marks()).toEqual(["false", "false", "true"]);
    model.set("selected", [11, 12]);
    nextFrame();
    expect(marks()).toEqual(["true", "true", "false"]);
    remove();
    model.set("selected", []);
    expect(frames).toHaveLength(0);
  });

  it("keeps one tab stop, and a button that goes hands the focus to its neighbour", async () => {
    const { model, el, lines } = await shown(three());
    expect(el.querySelectorAll("[tabindex='0']")).toHaveLength(1);
    lines[1]?.querySelector<HTMLElement>(".mlx-cancel")?.focus();
    model.says({ kind: "delta", seq: 1, rows: [{ i: 1, status: "finished" }] });
    nextFrame();
    expect(document.activeElement).toBe(lines[1]?.querySelector(".mlx-copy"));
  });

  it("is told to a reader who does not see: a grid of rows that can be chosen", async () => {
    const { el, lines } = await shown(three());
    const grid = el.querySelector("[role=grid]");
    expect(grid?.getAttribute("aria-multiselectable")).toBe("true");
    expect([...(grid?.children ?? [])]).toEqual(lines);
    expect(lines[0]?.getAttribute("aria-label")).toBe("row 11: Tell me about a fox");
    expect(lines[0]?.firstElementChild?.getAttribute("role")).toBe("gridcell");
  });

  it("is not offered for rows that have no number", async () => {
    const { el, lines, model } = await shown([row(), row()]);
    lines[0]?.querySelector<HTMLElement>(".mlx-prompt")?.click();
    expect(model.traits.selected).toEqual([]);
    expect(el.querySelector("[role=grid], [aria-selected], .mlx-row[data-stop]")).toBeNull();
  });
});
