import { describe, expect, it } from "vitest";
import { drawAxis, type Pen, timeScale } from "../src/chart";
import { board } from "./boardhelp";

/** What the time axis of a run of 3.4 ms says, from pixel 100 on, `width` pixels wide. */
function axis(width: number): [string, number][] {
  const { run } = board().board;
  const said: [string, number][] = [];
  const pen = { colours: {}, text: (words: string, x: number) => said.push([words, x]) } as unknown as Pen;
  const scale = timeScale(run, 100, run.began(0), width / 3400);
  drawAxis(pen, run, scale, 0, 100, 100 + width, true);
  return said;
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
