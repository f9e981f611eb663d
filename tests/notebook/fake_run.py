"""A made-up run as a feed for the dashboard and the timeline: known rows and steps, and a page's questions noted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlx_notebook.notebook.run_feed import Body

STEP_US = 80_000
PROMPTS = (
    (0, 2, 26, "Tell me about a fox"),
    (0, 2, 34, "Name three rivers"),
    (1, 9, 18, "Summarise: a report of 2,900 tokens about the tides of the northern seas"),
    (3, 2, 22, "Write a haiku"),
    (6, 3, 30, "Translate: guten Morgen"),
    (9, 2, 12, "What is 7 x 8?"),
    (14, 2, 25, "A title for my paper"),
    (20, 4, 15, "Explain tides"),
    (24, 2, 14, "Say hello"),
)
WORDS = [
    "The",
    "tide",
    "is",
    "the",
    "slow",
    "breath",
    "of",
    "the",
    "sea",
    ".",
    "The",
    "moon",
    "pulls",
    "the",
    "water",
    ",",
    "and",
    "it",
    "follows",
    "her",
    "round",
    "the",
    "earth",
    ".",
]
EMPTY = -1


def simulate(turns: int = 78, places: int = 4, cancelled: int | None = 4) -> Body:
    """The run after so many turns: each reads one chunk of one prompt, then takes a step of the rows that write."""
    return _Simulation(places, cancelled).run(turns)


class _Simulation:
    def __init__(self, places: int, cancelled: int | None) -> None:
        self.places, self.cancelled = places, cancelled
        self.now = 0
        self.step = 0
        self.rows: dict[int, dict[str, Any]] = {}
        self.queue: list[int] = []
        self.body: Body = {
            "titles": {"id": [], "title": [], "model": []},
            "steps": {"step": [], "start": [], "end": [], "rows": [], "queued": []},
            "chunks": {"row": [], "step": [], "from": [], "to": [], "start": [], "end": []},
            "tokens": {"row": [], "step": [], "n": [], "logprob": []},
            "texts": {"row": [], "n": [], "text": []},
        }

    def run(self, turns: int) -> Body:
        for turn in range(turns):
            self._arrive(turn)
            self._admit()
            self._read()
            self._write()
        names = list(next(iter(self.rows.values()))) if self.rows else []
        table = {name: [row[name] for row in self.rows.values()] for name in names if not name.startswith("_")}
        self.body["requests"] = table
        self.body["now"] = self.now
        return self.body

    def _arrive(self, turn: int) -> None:
        for i, (at, chunks, tokens, title) in enumerate(PROMPTS, start=1):
            if at != turn:
                continue
            self.rows[i] = {
                "id": i, "status": "queued", "slot": EMPTY, "priority": 0, "prompt_tokens": chunks * 320,
                "cached_tokens": 0, "prefilled": 0, "generated_tokens": 0, "max_tokens": 64, "submit": self.now,
                "admit": EMPTY, "first": EMPTY, "end": EMPTY, "reason": "", "detail": "", "rewinds": 0,
                "waiting": "", "note": "", "_tokens": tokens,
            }  # fmt: skip
            self.queue.append(i)
            for column, value in (("id", i), ("title", title), ("model", "smollm2")):
                self.body["titles"][column].append(value)

    def _admit(self) -> None:
        busy = {row["slot"] for row in self.rows.values() if row["status"] in ("prefill", "decode")}
        while self.queue and len(busy) < self.places:
            row = self.rows[self.queue.pop(0)]
            row["slot"] = min(set(range(self.places)) - busy)
            busy.add(row["slot"])
            row["status"], row["admit"] = "prefill", self.now
        for place, waits in enumerate(self.queue):
            before = "1 row is" if place == 1 else f"{place} rows are"
            ahead = f", and {before} before it" if place else ""
            self.rows[waits]["waiting"] = f"all {self.places} places are taken{ahead}"

    def _read(self) -> None:
        row = next((row for row in self.rows.values() if row["status"] == "prefill"), None)
        if row is None:
            return
        start, row["waiting"] = row["prefilled"], ""
        row["prefilled"] = min(row["prompt_tokens"], start + 320)
        self._append("chunks", row["id"], self.step, start, row["prefilled"], self.now, self.now + 45_000)
        self.now += 45_000
        if row["prefilled"] == row["prompt_tokens"]:
            row["status"] = "decode"

    def _write(self) -> None:
        writing = [row for row in self.rows.values() if row["status"] == "decode"]
        if not writing:
            return
        self.step += 1
        start, self.now = self.now, self.now + STEP_US + 1000 * len(writing)
        self._append("steps", self.step, start, self.now, len(writing), len(self.queue))
        for row in writing:
            row["generated_tokens"] += 1
            n = row["generated_tokens"]
            row["first"] = self.now if row["first"] < 0 else row["first"]
            self._append("tokens", row["id"], self.step, n, -0.02 * (n * n % 97))
            word = WORDS[(n - 1) % len(WORDS)]
            self._append("texts", row["id"], n, word if n == 1 or word in ".," else f" {word}")
            if row["id"] == self.cancelled and n == 16:
                row.update(status="cancelled", end=self.now, reason="cancelled", detail="user", note="cancelled")
            elif n == row["_tokens"]:
                row.update(status="finished", end=self.now, reason="stop", detail="eos")

    def _append(self, table: str, *values: object) -> None:
        for column, value in zip(self.body[table].values(), values, strict=True):
            column.append(value)


class FakeFeed:
    """A feed over a body that is there already. `asked` notes what pages asked for; `more` comes as news, once."""

    def __init__(self, body: Body | None = None, *, title: str = "smollm2", live: bool = True) -> None:
        self.title, self.live = title, live
        self.body = simulate() if body is None else body
        self.more: list[Body] = []
        self.asked: list[dict[str, Any]] = []
        self.changed: dict[str, Any] = {}
        self.is_over = False
        self.resumed = self.opened = 0

    def over(self) -> bool:
        return self.is_over

    def figures(self) -> dict[str, Any]:
        states = self.body.get("requests", {"status": []})["status"]
        return {
            "active": states.count("decode"), "prefill": states.count("prefill"), "queued": states.count("queued"),
            "places": 4, "tokens_per_s": 44.3, "kv_bytes": 212_000_000, "kv_projected_bytes": 260_000_000,
            "kv_budget_bytes": 512_000_000, "cache_hits": 3, "cache_misses": 6, "cache_tokens_reused": 410,
            "lease_holder": None, "paused": False, "stepping": 0, "delay_ms": 0, "steps": 70, "model": "smollm2",
            "device": "cpu", "missed": 0, **self.changed,
        }  # fmt: skip

    def history(self) -> list[Body]:
        return [{**self.body, "figures": self.figures()}]

    def news(self) -> Body:
        return self.more.pop(0) if self.more else {}

    def whole(self, *, why: bool = False) -> Body:
        body = {**self.body, "figures": self.figures()}
        if why:
            text = "It waited because all 4 places were taken: rows 1, 2, 3 and 5 held them, and row 7 came before it."
            body["why"] = {str(row): [{"code": "batch-full", "text": text}] for row in self.body["requests"]["id"]}
        return body

    def ask(self, asked: Mapping[str, Any]) -> object:
        self.asked.append(dict(asked))
        if asked["do"] in ("pause", "resume"):
            self.changed["paused"] = asked["do"] == "pause"
        if asked["do"] == "extend":
            raise ValueError("64 tokens more do not fit into the memory budget")
        return [{"code": "batch-full", "text": "all 4 places were taken"}] if asked["do"] == "why" else None

    def opened_by_reader(self) -> None:
        self.opened += 1

    def closed_by_reader(self) -> None:
        self.resumed += 1
