import { describe, expect, it } from "vitest";
import { drawAxis, type Pen, type Scale, stepScale, timeScale } from "../src/chart";
import type { Run } from "../src/run";
import { board } from "./boardhelp";

/** What an axis says, from pixel 100 on, `width` pixels wide. */
function said(run: Run, scale: Scale, width: number, time: boolean): [string, number][] {
  const words: [string, number][] = [];
  const pen = { colours: {}, text: (one: string, x: number) => words.push([one, x]) } as unknown as Pen;
  drawAxis(pen, run, scale, 0, 100, 100 + width, time);
  return words;
}

/** The time axis of a run of 3.4 ms. */
function axis(width: number): [string, number][] {
  const { run } = board().board;
  return said(run, timeScale(run, 100, run.began(0), width / 3400), width, true);
}

describe("the axis of times", () => {
  it("has round times, each where it was", () => {
    expect(axis(340).map(([words]) => words)).toEqual(["0 ms", "1 ms", "2 ms", "3 ms"]);
    expect(axis(340).map(([, x]) => Math.round(x))).toEqual([100, 200, 300, 400]);
  });

  it("has as many as fit", () => {
    expect(axis(1700).map(([words]) => words)).toEqual(Array.from({ length: 17 }, (_, n) => `${n * 200} µs`));
    expect(axis(120).map(([words]) => words)).toEqual(["0 ms", "2 ms"]);
  });
});

describe("the axis of steps", () => {
  const steps = Array.from({ length: 1200 }, (_, n) => n + 3);
  const run = { columns: steps.length, step: steps, decode: steps.map(() => true) } as unknown as Run;
  const words = (width: number, from = 0) =>
    said(run, stepScale(100, from, width / (1200 - from)), width, false).map(([one]) => one);

  it("has round numbers of a long run, as many as fit", () => {
    expect(words(600)).toEqual(Array.from({ length: 11 }, (_, n) => String((n + 1) * 100)));
    expect(words(120)).toEqual(["500"]);
  });

  it("has them of the steps that are seen", () => {
    expect(words(600, 1190)).toEqual([
      "1193",
      "1194",
      "1195",
      "1196",
      "1197",
      "1198",
      "1199",
      "1200",
      "1201",
      "1202",
    ]);
  });
});
