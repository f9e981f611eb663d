// What a kernel hears of a view as its page goes and comes back.

import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import type { FromKernel, Snapshot, ToKernel, Traits } from "../src/boardwire";
import dashboard from "../src/dashboard";
import stream from "../src/stream";
import timeline from "../src/timeline";
import "./boardhelp";
import { FakeModel, row, snapshot } from "./help";

const RUN: Snapshot = {
  seq: 0,
  count: 1,
  view: "dashboard",
  title: "demo",
  live: true,
  final: false,
  figures: null,
};

const going = () => window.dispatchEvent(new Event("pagehide"));
const coming = (persisted: boolean) => {
  const event = new Event("pageshow");
  Object.defineProperty(event, "persisted", { value: persisted });
  window.dispatchEvent(event);
};

let removed: (() => void)[] = [];

/** A widget in a page, and what it said since. */
function shown<M>(widget: () => unknown, model: M): M {
  const made = widget() as { initialize(props: object): void; render(props: object): () => void };
  const signal = new AbortController().signal;
  made.initialize({ model, signal });
  const el = document.createElement("div");
  document.body.append(el);
  removed.push(made.render({ model, el, signal }));
  return model;
}

beforeEach(() => {
  vi.useFakeTimers();
  removed = [];
});

afterEach(() => {
  for (const remove of removed) remove();
  document.body.replaceChildren();
  vi.useRealTimers();
});

describe.each([
  ["dashboard", dashboard],
  ["timeline", timeline],
])("a %s", (_name, widget) => {
  const board = () =>
    shown(
      widget,
      new FakeModel<Traits, ToKernel, FromKernel>({ snapshot: { ...RUN }, selected: [], brush: [] }),
    );
  const viewOf = ({ sent }: { sent: ToKernel[] }) =>
    sent.flatMap((one) => ("view" in one ? [one.view] : []))[0];

  it("goes with its page, once", () => {
    const model = board();
    const view = viewOf(model);
    model.sent = [];
    going();
    expect(model.sent).toEqual([{ kind: "gone", view }]);
    removed.pop()?.();
    expect(model.sent).toHaveLength(1);
  });

  it("is there again in a page that the browser kept", () => {
    const model = board();
    const view = viewOf(model);
    going();
    model.sent = [];
    coming(false);
    expect(model.sent).toEqual([]);
    coming(true);
    expect(model.sent).toMatchObject([{ kind: "hello" }, { kind: "view", view, on: true }]);
    removed.pop()?.();
    expect(model.sent.at(-1)).toEqual({ kind: "gone", view });
  });

  it("says hello again while nobody answers, and no more once the history is here", () => {
    const hellos = () => model.sent.filter(({ kind }) => kind === "hello").length;
    const model = board();
    vi.advanceTimersByTime(3000);
    expect(hellos()).toBe(4);
    model.says({ kind: "history", seq: 0, part: 0, parts: 2 });
    vi.advanceTimersByTime(500);
    model.says({ kind: "history", seq: 0, part: 1, parts: 2 });
    vi.advanceTimersByTime(10_000);
    expect(hellos()).toBe(4);
  });

  it("of a saved page asks nobody", () => {
    const told = { ...RUN, final: true, body: {} };
    const model = shown(
      widget,
      new FakeModel<Traits, ToKernel, FromKernel>({ snapshot: told, selected: [], brush: [] }),
    );
    model.sent = [];
    vi.advanceTimersByTime(10_000);
    expect(model.sent).toEqual([]);
  });

  it("says that it is there when the kernel asks, and not when it has gone", () => {
    const model = board();
    const view = viewOf(model);
    model.sent = [];
    model.says({ kind: "who" });
    expect(model.sent).toEqual([{ kind: "here", view }]);
    going();
    model.sent = [];
    model.says({ kind: "who" });
    removed.pop()?.();
    model.says({ kind: "who" });
    expect(model.sent).toEqual([]);
  });

  it("says nothing more once it was taken down", () => {
    const model = board();
    removed.pop()?.();
    model.sent = [];
    going();
    coming(true);
    expect(model.sent).toEqual([]);
  });
});

describe("a stream", () => {
  it("says hello again while nobody answers", () => {
    const model = shown(stream, new FakeModel({ snapshot: snapshot([row()]), selected: [] as number[] }));
    const hellos = () => model.sent.filter(({ kind }) => kind === "hello").length;
    vi.advanceTimersByTime(3000);
    expect(hellos()).toBe(4);
    model.says({ kind: "delta", seq: 1, rows: [] });
    vi.advanceTimersByTime(10_000);
    expect(hellos()).toBe(4);
  });

  it("keeps its view as its page goes: a reload comes back to the same widget", () => {
    const model = shown(stream, new FakeModel({ snapshot: snapshot([row()]), selected: [] as number[] }));
    model.sent = [];
    going();
    expect(model.sent).toEqual([]);
  });
});
