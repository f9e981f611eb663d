"""Rows without a gateway: what a view reads of a handle, moved by hand or by a thread."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.results import TokenLogprob
from mlx_notebook.core.rows import RowStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

_ids = itertools.count(1)


@dataclass(frozen=True)
class FakeProgress:
    status: RowStatus = RowStatus.QUEUED
    prompt_tokens: int = 8
    prefilled: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    decode_tps: float | None = None
    ttft_ms: float | None = None
    elapsed_ms: float = 0.0
    finish_reason: str | None = None
    finish_detail: str | None = None
    error: str | None = None
    waiting: str = ""
    thinking: str = ""
    paused: bool = False


class FakeRow:
    """A row that does what it is told."""

    def __init__(self, prompt: str = "Tell me about a fox") -> None:
        self.id = next(_ids)
        self.prompt_text = prompt
        self.cancels = 0
        self._text = ""
        self._pieces: list[str] = []
        self._progress = FakeProgress()
        self._lock = threading.Lock()
        self.cancelled = threading.Event()

    @property
    def text_so_far(self) -> str:
        with self._lock:
            return self._text

    def text_from(self, position: int, /) -> str:
        with self._lock:
            return self._text[position:]

    def pieces(self, after: int = 0, /) -> list[str]:
        """Each `say` is a token."""
        with self._lock:
            return self._pieces[after:]

    def logprobs_so_far(self, after: int = 0, /) -> list[TokenLogprob]:
        return [TokenLogprob(n, -0.5 * n) for n in range(len(self.pieces()))][after:]

    def progress(self) -> FakeProgress:
        with self._lock:
            return self._progress

    def cancel(self) -> bool:
        self.cancels += 1
        if self.done():
            return False
        self.cancelled.set()
        return True

    def done(self) -> bool:
        return self.progress().status.final

    def be(self, **changes: Any) -> None:
        """Have other figures."""
        with self._lock:
            self._progress = replace(self._progress, **changes)

    def wait_for(self, sentence: str) -> None:
        with self._lock:
            self._progress = replace(self._progress, waiting=sentence, elapsed_ms=3_400)

    def read(self, prefilled: int, of: int) -> None:
        with self._lock:
            self._progress = replace(
                self._progress, status=RowStatus.PREFILL, waiting="", prefilled=prefilled, prompt_tokens=of
            )

    def say(self, text: str, tps: float | None = 12.5) -> None:
        with self._lock:
            self._text += text
            self._pieces.append(text)
            self._progress = replace(
                self._progress,
                status=RowStatus.DECODE,
                waiting="",
                decode_tps=tps,
                ttft_ms=310.0,
                generated_tokens=self._progress.generated_tokens + 1,
            )

    def finish(self, detail: str = "eos") -> None:
        reason = "length" if detail in ("max_tokens", "context") else "stop"
        self._end(RowStatus.FINISHED, reason, detail)

    def end_cancelled(self, detail: str = "user") -> None:
        self._end(RowStatus.CANCELLED, "cancelled", detail)

    def fail(self, error: str) -> None:
        with self._lock:
            self._progress = replace(self._progress, error=error)
        self._end(RowStatus.FAILED, "error", None)

    def _end(self, status: RowStatus, reason: str, detail: str | None) -> None:
        with self._lock:
            self._progress = replace(
                self._progress, status=status, finish_reason=reason, finish_detail=detail, waiting=""
            )

    def talk(self, tokens: Iterable[str], every_s: float) -> FakeRow:
        """Say the tokens on a thread, one every so often, until they end or the row is cancelled."""

        def work() -> None:
            for token in tokens:
                if self.cancelled.is_set():
                    self.end_cancelled()
                    return
                self.say(token)
                time.sleep(every_s)
            self.finish()

        threading.Thread(target=work, name="fake-row", daemon=True).start()
        return self


def counting(prefix: str = "token") -> Iterable[str]:
    """Tokens without end: "token0 token1 ..."."""
    return (f"{prefix}{i} " for i in itertools.count())
