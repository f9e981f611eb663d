import { describe, expect, it, vi } from "vitest";
import { Store } from "../src/store";
import { row, snapshot } from "./help";

describe("Store", () => {
  it("adds deltas in order and tells which row changed", () => {
    const store = new Store(snapshot([row(), row({ text: "x" })]));
    const told = vi.fn();
    store.subscribe(told);
    expect(store.add(1, [{ i: 1, add: "y", generated: 2 }])).toBe(true);
    expect(store.add(2, [{ i: 0, add: "a", status: "finished" }])).toBe(true);
    expect(store.rows.map((r) => [r.text, r.generated, r.status])).toEqual([
      ["a", 0, "finished"],
      ["xy", 2, "decode"],
    ]);
    expect(told.mock.calls).toEqual([[1], [0]]);
  });

  it("notices a gap once, then waits for the snapshot and drops what is older", () => {
    const store = new Store(snapshot([row({ text: "a" })]));
    expect(store.add(2, [{ i: 0, add: "c" }])).toBe(false);
    expect(store.add(3, [{ i: 0, add: "d" }])).toBe(true);
    expect(store.rows[0]?.text).toBe("a");
    store.replace(snapshot([row({ text: "abcd" })], { seq: 3 }));
    expect(store.add(3, [{ i: 0, add: "d" }])).toBe(true);
    expect(store.add(4, [{ i: 0, add: "e" }])).toBe(true);
    expect(store.rows[0]?.text).toBe("abcde");
  });

  it("ignores a snapshot that is older than what it holds", () => {
    const store = new Store(snapshot([row({ text: "a" })], { seq: 5 }));
    store.replace(snapshot([row({ text: "" })], { seq: 4 }));
    expect(store.rows[0]?.text).toBe("a");
  });

  it("does not share its rows with the snapshot", () => {
    const given = snapshot([row({ text: "a" })]);
    const store = new Store(given);
    store.add(1, [{ i: 0, add: "b" }]);
    expect(given.rows[0]?.text).toBe("a");
  });

  it("is lost with its kernel, found again by a snapshot, and never lost once all is said", () => {
    const store = new Store(snapshot([row()]));
    store.lose();
    expect(store.lost).toBe(true);
    store.replace(snapshot([row()], { final: true }));
    expect(store.lost).toBe(false);
    store.lose();
    expect(store.lost).toBe(false);
  });
});
