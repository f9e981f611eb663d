import { describe, expect, it } from "vitest";
import { figures, isolated, prelude, spoken, summary, tokens, tokenWords, totalRate } from "../src/words";
import { row } from "./help";

describe("words", () => {
  it("counts", () => {
    expect(tokens(1)).toBe("1 token");
    expect(tokens(1920)).toBe("1,920 tokens");
  });

  it("say why a row waits and how far a prompt is read", () => {
    expect(prelude(row({ status: "queued" }))).toBe("waiting");
    expect(prelude(row({ status: "queued", waiting: "row 1 runs" }))).toBe("waiting: row 1 runs");
    expect(prelude(row({ status: "prefill", prefilled: 128, prompt_tokens: 2900 }))).toBe(
      "reading the prompt, 128 of 2,900 tokens",
    );
    expect(prelude(row())).toBe("");
  });

  it("give figures their units, and none that do not exist", () => {
    expect(figures(row({ generated: 26 }))).toBe("26 tokens");
    expect(figures(row({ generated: 26, tps: 8.25 }))).toBe("26 tokens · 8.3 tokens/s");
    expect(figures(row({ status: "finished", generated: 34, tps: 94.4, first_s: 0.31 }))).toBe(
      "34 tokens · 94 tokens/s · first after 0.3 s",
    );
    expect(figures(row({ status: "queued", seconds: 3 }))).toBe("3 s");
    expect(figures(row({ status: "queued", seconds: 0 }))).toBe("");
  });

  it("sum up several rows", () => {
    const rows = [
      row({ tps: 10 }),
      row({ tps: 2.5 }),
      row({ status: "queued" }),
      row({ status: "failed", tps: 99 }),
    ];
    expect(summary(rows)).toBe("4 rows · 1 done · 1 waiting");
    expect(totalRate(rows)).toBe("13 tokens/s");
    expect(totalRate([row({ status: "queued" })])).toBe("");
  });

  it("speak of states, never of text", () => {
    expect(spoken([row({ text: "secret" })])).toBe("writing");
    expect(spoken([row({ status: "finished", generated: 2, text: "secret" })])).toBe("finished, 2 tokens");
    expect(spoken([row({ text: "secret" }), row({ status: "cancelled" })])).toBe("1 of 2 rows done");
  });
});

describe("a token's line", () => {
  const facts = {
    step: 7,
    ms: 4.25,
    shared: [2, 3],
    logprob: -0.1,
    top: [{ text: "\u05d0", logprob: -0.1 }],
  };

  it("says how long the row waited for it, since what", () => {
    expect(tokenWords(row(), 2, facts)).toContain("token 2 · came 4.3 ms after the token before · step 7");
    expect(tokenWords(row(), 1, { ...facts, ms: 340 })).toContain("came 340 ms after its place in the batch");
  });

  it("isolates candidates, so that none turns its probability around", () => {
    expect(tokenWords(row(), 2, facts)).toContain("candidates: “\u2068\u05d0\u2069” 90%");
    expect(isolated("\u202ea\u2069b\u2067c")).toBe("\u2068\u202eabc\u2069");
  });
});
