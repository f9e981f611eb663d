import { describe, expect, it, vi } from "vitest";
import { columnWords, doing, outcome } from "../src/boardwords";
import { stepScale, timeScale } from "../src/chart";
import { DashView } from "../src/dashview";
import { Run } from "../src/run";
import { TimeView } from "../src/timeview";
import { surprise, TokenText } from "../src/tokentext";
import { board, body, HOSTILE, life, request } from "./boardhelp";
import { lastAsk } from "./help";

describe("a run", () => {
  it("makes a column of each step and each forward of prompts, in the order of their ends", () => {
    const run = new Run();
    run.add(body());
    expect(run.decode).toEqual([0, 1, 1]);
    expect(run.rows.get(1)?.tokens).toEqual([1, 2]);
    expect(run.rows.get(1)?.runs).toEqual([[1, 2]]);
    expect(run.rowsIn(0).map((row) => row.id)).toEqual([1]);
    expect(run.rows.get(1)?.texts).toEqual(["Hello", HOSTILE]);
  });

  it("takes prompts that were read together as one column", () => {
    const run = new Run();
    run.add({ chunks: { row: [1, 2], step: [0, 0], from: [0, 0], to: [9, 9], start: [5, 5], end: [9, 9] } });
    expect(run.columns).toBe(1);
    expect(run.inStep).toEqual([2]);
  });

  it("joins text that comes later to its token, and leaves a hole for tokens that nobody could read", () => {
    const run = new Run();
    run.add(body());
    run.add({
      texts: { row: [1], n: [2], text: ["!"] },
      steps: { step: [9], start: [4000], end: [5000], rows: [1], queued: [0] },
    });
    run.add({ tokens: { row: [1], step: [9], n: [5] } });
    expect(run.rows.get(1)?.texts[1]).toBe(`${HOSTILE}!`);
    expect(run.rows.get(1)?.tokens).toHaveLength(5);
    expect(run.tokenIn(run.rows.get(1) as never, 3)).toBe(4);
  });

  it("guesses the steps of a row where no tokens are sent", () => {
    const run = new Run();
    const { tokens: _tokens, texts: _texts, ...rest } = body();
    run.add(rest);
    expect(run.runsOf(run.rows.get(1) as never, 0, 9)).toEqual([[1, 2]]);
    expect(run.rowsIn(2).map((row) => row.id)).toEqual([1]);
  });

  it("keeps a place in the batch, also of a row that ended", () => {
    const run = new Run();
    run.add(body());
    run.add({ requests: request(1, { status: "finished", end: 3500, slot: -1 }) });
    expect(run.rows.get(1)?.slot).toBe(0);
    expect(run.rows.get(1)?.status).toBe("finished");
  });

  it("finds columns by time and by place", () => {
    const run = new Run();
    run.add(body());
    expect(run.columnAt(3000)).toBeCloseTo(2.5);
    const steps = stepScale(10, 0, 5);
    expect(steps.column(steps.left(2) + 1)).toBeCloseTo(2.2);
    const time = timeScale(run, 10, 0, 0.1);
    expect(time.left(2)).toBe(260);
    expect(time.right(2)).toBe(360);
  });
});

describe("a board", () => {
  it("asks once for everything when a message is lost, and goes on from there", () => {
    const { board: b, sent } = board();
    b.hear({ kind: "delta", seq: 5, now: 1 });
    b.hear({ kind: "delta", seq: 6, now: 1 });
    expect(sent.map((message) => message.kind)).toEqual(["resync"]);
    b.hear({ kind: "history", seq: 6, part: 0, parts: 2, steps: body().steps as never });
    expect(b.run.columns).toBe(3);
    b.hear({
      kind: "history",
      seq: 6,
      part: 1,
      parts: 2,
      ...body(),
      steps: { step: [3], start: [4000], end: [5000], rows: [1], queued: [0] },
    });
    expect(b.run.step).toEqual([0, 1, 2, 3]);
    b.hear({ kind: "delta", seq: 7, requests: request(3) });
    expect(b.run.rows.has(3)).toBe(true);
  });

  it("asks again for a history of which a part was lost, the last one too", () => {
    const { board: b, sent } = board();
    const asks = () => sent.filter(({ kind }) => kind === "resync").length;
    b.hear({ kind: "history", seq: 6, part: 0, parts: 3 });
    b.hear({ kind: "history", seq: 6, part: 2, parts: 3 });
    expect(asks()).toBe(1);
    b.hear({ kind: "history", seq: 6, part: 0, parts: 2 });
    b.hear({ kind: "delta", seq: 7 });
    expect(asks()).toBe(2);
    b.hear({ kind: "history", seq: 8, part: 0, parts: 1, ...body() });
    b.hear({ kind: "delta", seq: 9, requests: request(3) });
    expect([asks(), b.run.rows.has(3)]).toEqual([2, true]);
  });

  it("asks again when neither what it asked nor an answer got through", () => {
    vi.useFakeTimers();
    const { board: b, sent } = board();
    b.hear({ kind: "delta", seq: 5 });
    for (let seq = 6; seq < 26; seq++) {
      vi.advanceTimersByTime(50);
      b.hear({ kind: "delta", seq });
    }
    expect(sent.filter(({ kind }) => kind === "resync")).toHaveLength(2);
    vi.useRealTimers();
  });

  it("takes no answer to another page's question for its own", () => {
    const [one, other] = [board(), board()];
    const told: unknown[] = [];
    one.board.ask({ do: "why", row: 1 }, (state, value) => told.push([state, value]));
    other.board.ask({ do: "why", row: 2 }, () => undefined);
    one.board.hear({ kind: "answer", ask: lastAsk(other.sent), ok: true, value: "other's", error: "" });
    one.board.hear({ kind: "answer", ask: lastAsk(one.sent), ok: true, value: "own", error: "" });
    expect(told).toEqual([
      ["asked", null],
      ["done", "own"],
    ]);
  });

  it("says when nobody answers, and what came of an action", () => {
    vi.useFakeTimers();
    const { board: b, sent } = board();
    const told: string[] = [];
    b.ask({ do: "cancel", rows: [2] }, (state) => told.push(state));
    vi.advanceTimersByTime(600);
    b.hear({ kind: "ack", ask: lastAsk(sent) });
    b.hear({ kind: "answer", ask: lastAsk(sent), ok: true, value: 1, error: "" });
    expect(told).toEqual(["asked", "silent", "done"]);
    expect(sent.at(-1)).toEqual({ kind: "ask", ask: lastAsk(sent), do: "cancel", rows: [2] });
    expect(outcome("refused", null, "too long ago", "Cancelling")).toBe("too long ago");
    vi.useRealTimers();
  });

  it("is lost until the kernel is back, and then cannot be acted on", () => {
    const { board: b } = board();
    b.lose();
    expect(b.acts).toBe(false);
    b.snapshot({ seq: 0, count: 1, view: "dashboard", title: "t", live: true, final: false, figures: null });
    expect(b.acts).toBe(true);
  });
});

describe("words", () => {
  it("say what a column was and why a row waits", () => {
    const { board: b } = board();
    expect(columnWords(b, 1)).toBe("step 1: 1.0 ms, 1 row (#1), 1 waiting");
    expect(columnWords(b, 0)).toBe("prompt chunk after step 0: 900 µs, read #1 tokens 0 to 40");
    expect(doing(b.run.rows.get(2) as never)).toBe("waiting: all taken");
  });

  it("mark surprise in four grades", () => {
    expect([0.95, 0.6, 0.3, 0.1, null].map(surprise)).toEqual([0, 1, 2, 3, null]);
  });
});

describe("the dashboard", () => {
  function shown() {
    const { board: b, sent } = board();
    let chosen: number[] = [];
    const ending = new AbortController();
    const view = new DashView(b, { get: () => chosen, set: (rows) => (chosen = rows) }, ending.signal);
    document.body.replaceChildren(view.root);
    return { b, sent, view, ending, chosen: () => chosen };
  }

  it("shows a hostile prompt as text, and the reason for waiting in the row", () => {
    const { view } = shown();
    expect(view.root.querySelector("img, b.bold, script")).toBeNull();
    expect(view.root.textContent).toContain(HOSTILE);
    expect(view.root.querySelector("tr[data-status=queued]")?.textContent).toContain("waiting: all taken");
  });

  it("has one tab stop, moves up and down by row, and selects", () => {
    const { view, chosen } = shown();
    const stops = () => [...view.root.querySelectorAll<HTMLElement>("[tabindex='0']")];
    expect(stops()).toHaveLength(1);
    const picks = [...view.root.querySelectorAll<HTMLButtonElement>(".mlx-pick")];
    picks[0]?.focus();
    document.activeElement?.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }));
    expect(document.activeElement).toBe(picks[1]);
    (document.activeElement as HTMLElement).click();
    expect(chosen()).toEqual([1]);
    expect(stops()).toHaveLength(1);
  });

  it("sends what its buttons say", () => {
    const { view, sent } = shown();
    const press = (name: string) =>
      view.root.querySelector<HTMLButtonElement>(`.${name}:not([hidden])`)?.click();
    press("mlx-pause");
    press("mlx-step");
    press("mlx-sooner");
    view.root.querySelector<HTMLButtonElement>("tr[data-status=decode] .mlx-extend")?.click();
    view.root.querySelector<HTMLButtonElement>("tr[data-status=queued] .mlx-cancel")?.click();
    const asked = sent
      .filter((message) => message.kind === "ask")
      .map(({ kind: _k, ask: _a, ...rest }) => rest);
    expect(asked).toEqual([
      { do: "pause" },
      { do: "step", steps: 1 },
      { do: "reprioritize", row: 2, priority: 1 },
      { do: "extend", row: 1, tokens: 64 },
      { do: "cancel", rows: [2] },
    ]);
  });

  it("stops listening when it ends", () => {
    const { b, view, ending } = shown();
    ending.abort();
    b.hear({ kind: "delta", seq: 4, requests: request(9) });
    expect(view.root.textContent).not.toContain("#9");
  });
});

describe("the timeline", () => {
  it("opens a row, its text token by token, and the answer to why", () => {
    const { board: b, sent } = board();
    let chosen = [1];
    const choice = {
      get: () => chosen,
      set: (rows: number[]) => (chosen = rows),
      brushed: () => [],
      brush: () => {},
    };
    const view = new TimeView(b, choice, life());
    document.body.replaceChildren(view.root);
    const spans = [...view.root.querySelectorAll(".mlx-tokens span")];
    expect(spans.map((span) => span.textContent)).toEqual(["Hello", HOSTILE]);
    expect(view.root.querySelector("img, script")).toBeNull();
    expect(sent.at(-1)).toMatchObject({ kind: "ask", do: "why", row: 1 });
    const ask = (sent.at(-1) as { ask: number }).ask;
    b.hear({ kind: "answer", ask, ok: true, value: [{ code: "x", text: "<i>because</i>" }], error: "" });
    expect(view.root.querySelector(".mlx-why")?.textContent).toBe("<i>because</i>");
  });
});

describe("a text of tokens", () => {
  it("walks by arrow keys, lights up and is brushed", () => {
    const text = new TokenText("t");
    const seen: number[] = [];
    text.onPoint = (token) => seen.push(token);
    text.update({ texts: ["a", "b", "c"], chances: [0.95, 0.1, null] });
    const key = (name: string) =>
      text.root.dispatchEvent(new KeyboardEvent("keydown", { key: name, cancelable: true }));
    key("ArrowRight");
    key("ArrowRight");
    key("End");
    expect(seen).toEqual([0, 1, 2]);
    text.light(1);
    text.brush([1, 2]);
    const classes = [...text.root.children].map((span) => span.className);
    expect(classes).toEqual(["", "mlx-hot mlx-brushed", "mlx-brushed"]);
    expect((text.root.children[1] as HTMLElement).dataset.p).toBe("3");
  });

  it("keeps the end of a text that is too long for a page, and says so", () => {
    const text = new TokenText("t");
    text.update({ texts: Array.from({ length: 9000 }, (_, i) => String(i)), chances: [] });
    expect(text.root.querySelectorAll("span")).toHaveLength(6000);
    expect(text.root.firstChild?.textContent).toBe("(3,000 tokens before these are not drawn)\n");
    expect(text.root.lastElementChild?.textContent).toBe("8999");
  });
});
