// A run of two rows, and a board that knows it. jsdom draws nothing: the charts are looked at in the browser tests.

import { afterEach } from "vitest";
import { Board } from "../src/board";
import type { Body, Figures, Requests, ToKernel } from "../src/boardwire";

HTMLCanvasElement.prototype.getContext = (() => null) as never;

export const HOSTILE = "<img src=x onerror=alert(1)>\u202e\u001b[31m</script><b>bold</b>";

export function request(id: number, changes: Partial<Record<keyof Requests, unknown>> = {}): Requests {
  const row = {
    id,
    status: "decode",
    slot: id - 1,
    priority: 0,
    prompt_tokens: 40,
    cached_tokens: 0,
    prefilled: 40,
    generated_tokens: 2,
    max_tokens: 64,
    submit: 0,
    admit: 100,
    first: 2000,
    end: -1,
    reason: "",
    detail: "",
    rewinds: 0,
    waiting: "",
    note: "",
    ...changes,
  };
  return Object.fromEntries(
    Object.entries(row).map(([name, value]) => [name, [value]]),
  ) as unknown as Requests;
}

/** Row 1: a chunk, then two steps; row 2 waits. */
export function body(): Body {
  const [one, two] = [
    request(1),
    request(2, { status: "queued", slot: -1, admit: -1, first: -1, waiting: "all taken" }),
  ];
  const requests = Object.fromEntries(
    Object.keys(one).map((name) => [name, [...one[name as keyof Requests], ...two[name as keyof Requests]]]),
  ) as unknown as Requests;
  return {
    now: 4000,
    requests,
    titles: { id: [1, 2], title: [HOSTILE, "wait for me"], model: ["m", "m"] },
    steps: { step: [1, 2], start: [1000, 2500], end: [2000, 3500], rows: [1, 1], queued: [1, 1] },
    chunks: { row: [1], step: [0], from: [0], to: [40], start: [100], end: [1000] },
    tokens: { row: [1, 1], step: [1, 2], n: [1, 2], logprob: [-0.05, -3] },
    texts: { row: [1, 1], n: [1, 2], text: ["Hello", HOSTILE] },
  };
}

const ends: (() => void)[] = [];

// What a test leaves open would run on into the next, or into no page at all.
afterEach(() => {
  for (const end of ends.splice(0)) end();
});

/** The life of a view: it ends with the test. */
export function life(): AbortSignal {
  const ending = new AbortController();
  ends.push(() => ending.abort());
  return ending.signal;
}

export function board(): { board: Board; sent: ToKernel[] } {
  const sent: ToKernel[] = [];
  const made = new Board((message) => sent.push(message));
  ends.push(() => made.close());
  made.hear({ kind: "history", seq: 3, part: 0, parts: 1, ...body() });
  return { board: made, sent };
}

export function figures(changes: Partial<Figures> = {}): Figures {
  return {
    active: 1,
    prefill: 0,
    queued: 1,
    places: 2,
    tokens_per_s: 10,
    kv_bytes: 0,
    kv_projected_bytes: 0,
    kv_budget_bytes: null,
    cache_hits: 0,
    cache_misses: 0,
    cache_tokens_reused: 0,
    lease_holder: null,
    paused: false,
    stepping: 0,
    delay_ms: 0,
    steps: 2,
    model: "m",
    device: "cpu",
    missed: 0,
    ...changes,
  };
}
