import { describe, expect, it } from "vitest";
import type { Figures } from "../src/boardwire";
import { DashView } from "../src/dashview";
import { board, figures, life } from "./boardhelp";
import { lastAsk } from "./help";

/** A dashboard in the page, told these figures. */
function shown(told: Partial<Figures> = {}) {
  const { board: b, sent } = board();
  b.figures = figures(told);
  const view = new DashView(b, { get: () => [], set: () => undefined }, life());
  document.body.replaceChildren(view.root);
  const find = <E extends HTMLElement>(selector: string) => {
    const found = view.root.querySelector<E>(selector);
    if (!found) throw new Error(`no ${selector}`);
    return found;
  };
  const tell = (changes: Partial<Figures>) => {
    b.figures = figures(changes);
    view.draw();
  };
  const asked = () =>
    sent.filter((one) => one.kind === "ask").map(({ kind: _kind, ask: _ask, ...rest }) => rest);
  return { b, sent, view, find, tell, asked };
}

describe("the banner", () => {
  it("says all that is true, that it is paused first", () => {
    const { b, view, find, tell } = shown({ missed: 3 });
    const banner = find(".mlx-banner");
    expect(banner.textContent).toMatch(/^The beginning is gone: 3 records/);
    tell({ paused: true, delay_ms: 700, missed: 3 });
    expect(banner.textContent).toMatch(/^Paused: .*Slow motion: 700 ms .*The beginning is gone/);
    expect(banner.textContent).toContain("interrupt a cell that waits for a row");
    b.final = true;
    view.draw();
    expect(banner.textContent).toMatch(/^The beginning is gone/);
    b.final = false;
    b.lose();
    view.draw();
    expect(banner.textContent).toBe("The kernel is gone. This is the last that it told.");
    b.lost = false;
    tell({});
    expect(banner.hidden).toBe(true);
  });
});

describe("the pace", () => {
  const lines = (pace: HTMLSelectElement) => [...pace.options].map((one) => one.text);
  const offered = [
    "full speed",
    "slow motion: 0.2 s a step",
    "slow motion: 0.5 s a step",
    "slow motion: 1 s a step",
  ];

  it("is shown also where it is none of those offered, as long as it holds", () => {
    const { find, tell } = shown({ delay_ms: 500 });
    const pace = find<HTMLSelectElement>(".mlx-pace");
    expect(pace.selectedOptions[0]?.text).toBe("slow motion: 0.5 s a step");
    tell({ delay_ms: 350 });
    expect(pace.selectedOptions[0]?.text).toBe("slow motion: 0.35 s a step");
    tell({ delay_ms: 50 });
    expect(lines(pace)).toEqual([...offered, "slow motion: 0.05 s a step"]);
    tell({ delay_ms: 0 });
    expect(pace.selectedOptions[0]?.text).toBe("full speed");
    expect(lines(pace)).toEqual(offered);
  });
});

describe("the controls", () => {
  it("ask for another pace, and say what comes of it", () => {
    const { b, sent, find, asked } = shown();
    const pace = find<HTMLSelectElement>(".mlx-pace");
    const choose = (ms: number) => {
      pace.value = String(ms);
      pace.dispatchEvent(new Event("change"));
    };
    choose(500);
    expect(find(".mlx-message[role=status]").textContent).toBe("Slow motion…");
    b.hear({ kind: "answer", ask: lastAsk(sent), ok: true, value: null, error: "" });
    expect(find(".mlx-message[role=status]").textContent).toBe("Slow motion: done");
    choose(0);
    expect(asked()).toEqual([
      { do: "pace", ms: 500 },
      { do: "pace", ms: 0 },
    ]);
  });

  it("leave the pace alone while a reader is at it", () => {
    const { find, tell } = shown();
    const pace = find<HTMLSelectElement>(".mlx-pace");
    pace.focus();
    pace.value = "1000";
    tell({ delay_ms: 200 });
    expect(pace.value).toBe("1000");
    pace.blur();
    tell({ delay_ms: 200 });
    expect(pace.value).toBe("200");
  });

  it("resume what is paused, and pause what is not", () => {
    const { find, tell, asked } = shown({ paused: true });
    const pause = find<HTMLButtonElement>(".mlx-pause");
    expect([pause.textContent, pause.getAttribute("aria-pressed")]).toEqual(["▶ Resume", "true"]);
    pause.click();
    tell({ paused: false });
    expect([pause.textContent, pause.getAttribute("aria-pressed")]).toEqual(["❚❚ Pause", "false"]);
    pause.click();
    expect(asked()).toEqual([{ do: "resume" }, { do: "pause" }]);
  });

  it("take one step at a click, and pass on why not", () => {
    const { b, sent, find, asked } = shown({ paused: true });
    find<HTMLButtonElement>(".mlx-step").click();
    expect(asked()).toEqual([{ do: "step", steps: 1 }]);
    b.hear({ kind: "answer", ask: lastAsk(sent), ok: false, value: null, error: "the gateway is gone" });
    expect(find(".mlx-message[role=status]").textContent).toBe("the gateway is gone");
  });

  it("are not there where nobody can act", () => {
    const { b, view, find } = shown();
    b.final = true;
    view.draw();
    for (const name of ["pause", "step", "pace"]) expect(find(`.mlx-${name}`).hidden).toBe(true);
  });
});

describe("the memory", () => {
  it("shows beside what is held what the rows may come to take, and says what that is", () => {
    const { find, tell } = shown({ kv_bytes: 2e8, kv_projected_bytes: 5e8, kv_budget_bytes: 1e9 });
    const [box, need] = [find(".mlx-meter-box"), find(".mlx-need")];
    expect(find(".mlx-meter-box i").style.width).toBe("20%");
    expect(need.style.left).toBe("50%");
    expect(box.title).toMatch(
      /filled: 200 MB are held now; line: 500 MB are what the running rows take at most/,
    );
    expect(box.getAttribute("aria-label")).toBe(box.title);
    tell({ kv_bytes: 2e8, kv_projected_bytes: 3e9, kv_budget_bytes: 1e9 });
    expect(need.style.left).toBe("100%");
    tell({ kv_bytes: 2e8, kv_projected_bytes: 5e8 });
    expect(box.hidden).toBe(true);
    expect(box.parentElement?.textContent).toContain("200 MB (no budget)");
  });
});

describe("the legend", () => {
  it("has every mark of the chart, the column that is pointed at too", () => {
    const { view } = shown();
    const swatches = [...view.root.querySelectorAll(".mlx-legend .mlx-swatch")].map((one) => one.className);
    expect(swatches.map((name) => name.split(" ")[1])).toEqual([
      "prefill",
      "decode",
      "idle",
      "area",
      "dash",
      "meter",
      "hot",
    ]);
  });
});
