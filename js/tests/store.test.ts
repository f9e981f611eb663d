import { describe, expect, it, vi } from "vitest";
import { addTokens, Store } from "../src/store";
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

describe("what the kernel knows of a token", () => {
  it("is told to every view of the store, till the view goes", () => {
    const store = new Store(snapshot([row(), row()]));
    const [first, second] = [vi.fn(), vi.fn()];
    const leave = store.subscribeTokens(first);
    store.subscribeTokens(second);
    store.tellToken(1, 3, null);
    expect([first.mock.calls, second.mock.calls]).toEqual([[[1, 3, null]], [[1, 3, null]]]);
    leave();
    store.tellToken(0, 1, null);
    expect([first.mock.calls.length, second.mock.calls.length]).toEqual([1, 2]);
  });
});

describe("tokens of a row", () => {
  const news = (from: number, ...texts: string[]) => ({ from, texts, chances: texts.map(() => null) });

  it("come by their number: the first begins anew, later ones join, known ones are replaced", () => {
    const one = row();
    expect(addTokens(one, { from: 0, texts: ["a", "b"], chances: [0.5, null] })).toBe(true);
    expect(addTokens(one, news(2, "c"))).toBe(true);
    expect(addTokens(one, news(1, "B"))).toBe(true);
    expect(one.tokens).toEqual({ texts: ["a", "B"], chances: [0.5, null] });
    expect(addTokens(one, news(0, "x"))).toBe(true);
    expect(one.tokens?.texts).toEqual(["x"]);
  });

  it("are not joined over a gap", () => {
    const one = row({ tokens: { texts: ["a"], chances: [null] } });
    expect(addTokens(one, news(2, "c"))).toBe(false);
    expect(one.tokens?.texts).toEqual(["a"]);
    expect(addTokens(row(), news(1, "b"))).toBe(false);
  });
});

describe("tokens on demand", () => {
  const news = (from: number, ...texts: string[]) => ({ from, texts, chances: texts.map(() => null) });

  function followed() {
    const store = new Store(snapshot([row(), row()]));
    const asked: number[] = [];
    store.askTokens = (one) => asked.push(one);
    store.follow(1, "p/1", true);
    store.add(1, [{ i: 1, add: "a", tok: news(0, "a") }]);
    return { store, asked };
  }

  it("are asked for anew after a lost message, and go on", () => {
    const { store, asked } = followed();
    expect(store.add(3, [{ i: 1, add: "c", tok: news(2, "c") }])).toBe(false);
    expect(asked).toEqual([]);
    store.replace(snapshot([row(), row({ text: "abc" })], { seq: 3 }));
    expect(asked).toEqual([1]);
    // What the kernel said before it heard has the same gap before it.
    store.add(4, [{ i: 1, add: "d", tok: news(3, "d") }]);
    store.add(5, [{ i: 1, add: "e", tok: news(4, "e") }]);
    expect(asked).toEqual([1]);
    store.add(6, [{ i: 1, tok: news(0, "a", "b", "c", "d", "e") }]);
    store.add(7, [{ i: 1, add: "f", tok: news(5, "f") }]);
    expect(store.rows[1]?.tokens?.texts).toEqual(["a", "b", "c", "d", "e", "f"]);
    expect(store.rows[1]?.text).toBe("abcdef");
  });

  it("are asked for anew where the lost message was the last", () => {
    const { store, asked } = followed();
    store.replace(snapshot([row(), row({ text: "ab" })], { seq: 2, final: true }));
    expect(asked).toEqual([1]);
  });

  it("are asked for where only they have a gap, and only if a view shows them", () => {
    const { store, asked } = followed();
    store.add(2, [
      { i: 0, tok: news(4, "x") },
      { i: 1, tok: news(4, "x") },
    ]);
    expect(asked).toEqual([1]);
    store.follow(1, "p/1", false);
    store.add(3, [{ i: 1, tok: news(5, "y") }]);
    expect(asked).toEqual([1]);
  });

  it("are asked for as long as one of the views shows them", () => {
    const { store, asked } = followed();
    store.follow(1, "p/2", true);
    store.follow(1, "p/1", false);
    store.add(2, [{ i: 1, tok: news(4, "x") }]);
    expect(asked).toEqual([1]);
  });

  it("are all there when the final snapshot follows the message with the last ones", () => {
    const { store, asked } = followed();
    store.add(2, [{ i: 1, add: "b", status: "finished", tok: news(1, "b") }]);
    store.replace(snapshot([row(), row({ text: "ab", status: "finished" })], { seq: 2, final: true }));
    expect(store.rows[1]?.tokens?.texts).toEqual(["a", "b"]);
    expect(asked).toEqual([]);
  });

  it("need no asking after a snapshot that brings nothing new", () => {
    const { store, asked } = followed();
    store.replace(snapshot([row(), row({ text: "a" })], { seq: 1 }));
    expect(asked).toEqual([]);
  });
});
