import { describe, expect, it } from "vitest";
import type { Figures } from "../src/boardwire";
import { DashView } from "../src/dashview";
import { board, figures } from "./boardhelp";

/** A dashboard in the page, told these figures. */
function shown(told: Partial<Figures> = {}) {
  const { board: b, sent } = board();
  b.figures = figures(told);
  const view = new DashView(b, { get: () => [], set: () => undefined }, new AbortController().signal);
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
  return { b, view, find, tell, asked };
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
      "hot",
    ]);
  });
});
