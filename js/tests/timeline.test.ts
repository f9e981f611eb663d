import { describe, expect, it } from "vitest";
import type { Why } from "../src/boardwire";
import { TimeView } from "../src/timeview";
import { board } from "./boardhelp";

/** A timeline in the page; in jsdom it is 600 pixels wide, 190 of them names, a column 18. */
function shown(first: number[] = [], why: Record<string, Why[]> = {}) {
  const { board: b, sent } = board();
  b.why = why;
  const state = { chosen: first, brush: [] as number[] };
  const choice = {
    get: () => state.chosen,
    set: (rows: number[]) => {
      state.chosen = rows;
    },
    brush: (steps: number[]) => {
      state.brush = steps;
    },
  };
  const view = new TimeView(b, choice, new AbortController().signal);
  document.body.replaceChildren(view.root);
  const find = <E extends HTMLElement>(selector: string) => {
    const found = view.root.querySelector<E>(selector);
    if (!found) throw new Error(`no ${selector}`);
    return found;
  };
  const canvas = find<HTMLCanvasElement>("canvas");
  const press = (key: string, more = {}) => {
    canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more }));
    view.draw();
  };
  const at = (type: string, column: number, row: number, more = {}) => {
    const event = new MouseEvent(type, { bubbles: true, button: 0, ...more });
    Object.defineProperties(event, {
      offsetX: { value: 190 + 18 * column + 9 },
      offsetY: { value: 6 + 19 * row + 6 },
    });
    canvas.dispatchEvent(event);
    view.draw();
  };
  const click = (column: number, row: number, more = {}) => {
    at("pointerdown", column, row);
    at("pointerup", column, row, more);
  };
  const asked = () =>
    sent.filter((one) => one.kind === "ask").map(({ kind: _kind, ask: _ask, ...rest }) => rest);
  return { b, view, state, find, press, at, click, asked };
}

describe("why", () => {
  const head = ".mlx-why-head b";

  it("is asked of a moment by a click on a row that waits in that column", () => {
    const { find, click, asked } = shown();
    click(2, 1);
    expect(asked().at(-1)).toEqual({ do: "why", row: 2, at: 2500 });
    expect(find(head).textContent).toBe("What did #2 do at step 2?");
  });

  it("is asked of a moment by Enter, at the cursor's step", () => {
    const { find, press, asked } = shown([2]);
    press("Enter");
    expect(asked()).toEqual([{ do: "why", row: 2 }]);
    press("End");
    press("ArrowLeft");
    press("Enter");
    expect(asked().at(-1)).toEqual({ do: "why", row: 2, at: 1000 });
    expect(find(head).textContent).toBe("What did #2 do at step 1?");
  });

  it("is asked of the row beside the first by Shift and Enter", () => {
    const { press, asked, state } = shown([1, 2]);
    press("End");
    press("Enter", { shiftKey: true });
    expect(asked().at(-1)).toEqual({ do: "why", row: 2, at: 2500 });
    expect(state.chosen).toEqual([1, 2]);
  });

  it("of a saved page is the whole question's, at whatever moment it is asked", () => {
    const { find, click, asked } = shown([], { 2: [{ code: "queue", text: "it waited for a place" }] });
    click(2, 1);
    expect(find(head).textContent).toBe("Why did #2 take its time?");
    expect(find(".mlx-why").textContent).toBe("it waited for a place");
    expect(asked()).toEqual([]);
  });
});

describe("what things mean", () => {
  it("is said of every mark of the chart", () => {
    const { find } = shown();
    const words = find(".mlx-legend").textContent;
    for (const mark of ["steps that you marked", "▸the row that you read", "▹the one compared with it"])
      expect(words).toContain(mark);
    expect(find(".mlx-swatch.brushed")).toBeTruthy();
  });

  it("is said of the table's heads whose one word does not", () => {
    const { view } = shown();
    const heads = [...view.root.querySelectorAll<HTMLElement>(".mlx-rows-table th")];
    const titles = Object.fromEntries(heads.map((head) => [head.textContent, head.title]));
    expect(titles.waited).toContain("From submitting");
    expect(titles.first).toContain("first token");
    expect(titles.each).toContain("per token");
  });
});
