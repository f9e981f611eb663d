import { describe, expect, it, vi } from "vitest";
import type { Why } from "../src/boardwire";
import { TimeView } from "../src/timeview";
import { board, body, life, request } from "./boardhelp";
import { lastAsk } from "./help";

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
    brushed: () => state.brush,
    brush: (steps: number[]) => {
      state.brush = steps;
    },
  };
  const view = new TimeView(b, choice, life());
  document.body.replaceChildren(view.root);
  const find = <E extends HTMLElement>(selector: string) => {
    const found = view.root.querySelector<E>(selector);
    if (!found) throw new Error(`no ${selector}`);
    return found;
  };
  const canvas = find<HTMLCanvasElement>("canvas");
  const key = (name: string, more = {}) =>
    canvas.dispatchEvent(
      new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true, ...more }),
    );
  const press = (name: string, more = {}) => {
    key(name, more);
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
  return { b, sent, view, state, find, key, press, at, click, asked };
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

describe("the chart", () => {
  const names = (view: TimeView) => view.root.querySelectorAll(".mlx-rows-table tbody tr").length;

  it("zooms by its buttons and keys: the same place is another step then, and all of it is there again", () => {
    const { view, find, at, press } = shown();
    const read = () => find(".mlx-readout").textContent;
    at("pointermove", 1, 0);
    expect(read()).toMatch(/^step 1: /);
    find("[aria-label='zoom in']").click();
    find("[aria-label='zoom in']").click();
    view.draw();
    at("pointermove", 1, 0);
    expect(read()).not.toMatch(/^step 1: /);
    press("0");
    at("pointermove", 1, 0);
    expect(read()).toMatch(/^step 1: /);
    press("+");
    press("+");
    press("-");
    press("-");
    at("pointermove", 2, 0);
    expect(read()).toMatch(/^step 2: /);
  });

  it("has columns as wide as they took in Time mode", () => {
    const { view, find, at } = shown();
    const read = () => find(".mlx-readout").textContent;
    at("pointermove", 20, 0);
    expect(read()).toMatch(/^Point at/); // by steps, there are three columns only
    find(".mlx-by-time").click();
    view.draw();
    expect(find(".mlx-by-time").getAttribute("aria-pressed")).toBe("true");
    expect(find(".mlx-by-step").getAttribute("aria-pressed")).toBe("false");
    at("pointermove", 20, 0);
    expect(read()).toMatch(/^step 2: /);
    at("pointermove", 2, 0);
    expect(read()).toMatch(/^prompt chunk/);
  });

  it("shows the rows that the filters let through, and picks among those", () => {
    const { view, find, click, state } = shown();
    const filter = find<HTMLInputElement>(".mlx-filter");
    const table = find<HTMLDetailsElement>(".mlx-rows-table");
    table.open = true;
    const filtered = (words: string) => {
      filter.value = words;
      view.draw();
      return names(view);
    };
    expect(filtered("")).toBe(2);
    expect(filtered("WAIT for")).toBe(1);
    click(1, 0);
    expect(state.chosen).toEqual([2]);
    expect(filtered("#1")).toBe(1);
    expect(filtered("nobody")).toBe(0);
    filter.value = "";
    find<HTMLSelectElement>(".mlx-state-filter").value = "queued";
    view.draw();
    expect(names(view)).toBe(1);
  });

  it("keeps its table in the rows' order when those that a filter had hidden come back", () => {
    const { view, find } = shown();
    find<HTMLDetailsElement>(".mlx-rows-table").open = true;
    const filter = find<HTMLInputElement>(".mlx-filter");
    const lines = (words: string) => {
      filter.value = words;
      view.draw();
      return [...view.root.querySelectorAll<HTMLElement>("tr[data-line]")].map((one) => one.dataset.line);
    };
    expect(lines("#2")).toEqual(["2"]);
    expect(lines("")).toEqual(["1", "2"]);
  });

  it("says how many rows it does not draw", () => {
    const { b, view, find } = shown();
    const ids = Array.from({ length: 600 }, (_, i) => i + 10);
    for (const id of ids) b.run.add({ requests: request(id) });
    view.draw();
    expect(find(".mlx-bar .mlx-num").textContent).toBe(
      "602 requests, 2 steps; 102 older rows not drawn: filter to see them",
    );
    find<HTMLInputElement>(".mlx-filter").value = "#1";
    view.draw();
    expect(find(".mlx-bar .mlx-num").textContent).toBe("1 of 602 requests, 2 steps");
  });

  it("puts a second row beside the first with Shift, and compares them", () => {
    const { find, click, state, view } = shown();
    click(1, 0);
    expect(find(".mlx-compare").hidden).toBe(true);
    click(1, 1, { shiftKey: true });
    expect(state.chosen).toEqual([1, 2]);
    const lines = [...find(".mlx-compare").querySelectorAll("tr")].map((line) =>
      [...line.children].map((cell) => cell.textContent),
    );
    expect(lines[0]).toEqual(["compared", "#1", "#2"]);
    expect(lines[1]).toEqual(["waited", "100 µs", "4.0 ms"]);
    expect(lines.at(-1)).toEqual(["steps that both were in", "0", "0"]);
    view.root.querySelector<HTMLButtonElement>("[aria-label='close row 2']")?.click();
    expect(find(".mlx-compare").hidden).toBe(true);
  });
});

describe("words and steps", () => {
  const lit = (view: TimeView) => view.root.querySelector(".mlx-tokens .mlx-hot")?.textContent;
  const marked = (view: TimeView) => [...view.root.querySelectorAll(".mlx-tokens .mlx-brushed")].length;

  it("light each other up: a token its step, a step its token", () => {
    vi.useFakeTimers();
    const { b, sent, view, find, at, asked } = shown([1]);
    const second = view.root.querySelectorAll(".mlx-tokens span")[1] as HTMLElement;
    second.dispatchEvent(new MouseEvent("pointerover", { bubbles: true }));
    view.draw();
    expect(find(".mlx-readout").textContent).toMatch(/^step 2: .* · row #1: token 2$/);
    expect(lit(view)).toBe(second.textContent);
    expect(find(".mlx-token-facts").textContent).toMatch(/^token 2 of 2 · its step, 2, took 1.0 ms · alone/);
    vi.advanceTimersByTime(200);
    expect(asked().at(-1)).toEqual({ do: "token", row: 1, n: 2 });
    const value = { ms: 1.5, top: [{ token_id: 1, text: "x", logprob: -0.5 }] };
    b.hear({ kind: "answer", ask: lastAsk(sent), ok: true, value, error: "" });
    expect(find(".mlx-token-facts").textContent).toContain(
      "came 1.5 ms after the token before · its step, 2, took",
    );
    expect(find(".mlx-token-facts").textContent).toContain("candidates: “\u2068x\u2069” 61%");
    at("pointermove", 1, 0);
    expect(lit(view)).toBe("Hello");
    vi.useRealTimers();
  });

  it("steps that are dragged over mark their tokens, and are told to the kernel", () => {
    const { view, find, at, state } = shown([1]);
    at("pointerdown", 1, 0);
    at("pointermove", 2, 0);
    at("pointerup", 2, 0);
    expect(state.brush).toEqual([1, 2]);
    expect(marked(view)).toBe(2);
    at("pointerleave", 0, 0);
    expect(find(".mlx-readout").textContent).toBe("steps 1 to 2 are marked: 2 tokens of all rows");
    find(".mlx-clear").click();
    view.draw();
    expect(state.brush).toEqual([]);
    expect(marked(view)).toBe(0);
  });

  it("steps that are marked elsewhere are marked here, and stay marked in a new history", () => {
    const { b, view, state } = shown([1]);
    state.brush = [2, 2];
    view.chosenChanged();
    view.draw();
    expect(marked(view)).toBe(1);
    const { chunks: _none, ...forgotten } = body(); // the log has overwritten its beginning: other columns
    b.hear({ kind: "history", seq: 9, part: 0, parts: 1, ...forgotten });
    view.draw();
    expect(view.root.querySelector(".mlx-tokens .mlx-brushed")?.textContent).toMatch(/^<img/);
    expect(marked(view)).toBe(1);
    state.brush = [];
    view.draw();
    expect(marked(view)).toBe(0);
  });

  it("steps are marked by Shift and arrows too", () => {
    const { view, press, state } = shown([1]);
    press("End");
    press("ArrowLeft", { shiftKey: true });
    expect(state.brush).toEqual([1, 2]);
    expect(marked(view)).toBe(2);
    press("Escape");
    expect(state.brush).toEqual([]);
  });

  it("keys that come before the next drawing all count", () => {
    const { key, state } = shown([1]);
    key("End");
    key("ArrowLeft", { shiftKey: true });
    expect(state.brush).toEqual([1, 2]);
    key("ArrowLeft", { shiftKey: true });
    expect(state.brush).toEqual([0, 2]);
  });
});
