"""Figures of a gateway at one moment."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlx_notebook.core.prefix import PrefixIndex


@dataclass(frozen=True, slots=True)
class PromptCacheStats:
    """The prompt cache: entries and bytes now; hits, misses and reused tokens since the load."""

    entries: int = 0
    bytes: int = 0
    hits: int = 0
    misses: int = 0
    tokens_reused: int = 0

    @classmethod
    def of(cls, prefixes: PrefixIndex) -> PromptCacheStats:
        """The figures of a scheduler's index."""
        counters = prefixes.counters
        return cls(len(prefixes), prefixes.nbytes, counters.hits, counters.misses, counters.tokens_reused)


@dataclass(frozen=True, slots=True)
class GatewayStats:
    """A gateway at one moment. Bytes are bytes; `tokens_per_s` is over the last few seconds.

    `lease_holder` says who holds the device and for what; `silent_s` is how long the engine thread has
    been inside one native call or idle; `dtype` is what the weights are in (float32, 4bit, ...); `mode`
    is "serial" (one row at a time) or "continuous". `store_findings` is what the load's probe found against stores and
    ways that it tried and that are not used, a sentence each.
    """

    active_rows: int
    prefill_rows: int
    queued_rows: int
    submitted: int
    finished: int
    cancelled: int
    failed: int
    lease_waiting: int
    lease_holder: str | None
    kv_bytes: int
    kv_projected_bytes: int
    kv_budget_bytes: int
    weight_bytes: int
    prompt_cache: PromptCacheStats
    steps: int
    tokens_per_s: float
    device: str
    dtype: str
    store: str
    model: str
    mode: str
    silent_s: float
    store_findings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {**asdict(self), "store_findings": list(self.store_findings)}


class RateMeter:
    """Tokens per second over a sliding window, fed by the engine thread, read by anybody."""

    def __init__(self, window_s: float = 5.0) -> None:
        self._window_ns = int(window_s * 1e9)
        self._marks: deque[tuple[int, int]] = deque()
        self._total = 0

    def add(self, at_ns: int, tokens: int) -> None:
        """Count tokens committed at a time."""
        self._total += tokens
        self._marks.append((at_ns, self._total))
        while self._marks[0][0] < at_ns - self._window_ns:
            self._marks.popleft()

    def rate(self, now_ns: int) -> float:
        """Tokens per second since the window's first mark; 0 when nothing came lately."""
        marks = [mark for mark in tuple(self._marks) if mark[0] >= now_ns - self._window_ns]
        if len(marks) < 2:
            return 0.0
        seconds = (now_ns - marks[0][0]) / 1e9
        return (marks[-1][1] - marks[0][1]) / seconds if seconds > 0 else 0.0
