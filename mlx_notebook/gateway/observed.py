"""The part of a gateway that shows what its scheduler did, and lets a person hold the reins."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.options import as_int
from mlx_notebook.gateway.explaining import tenures_beside
from mlx_notebook.gateway.registry import registry
from mlx_notebook.trace.trace import About, Trace

if TYPE_CHECKING:
    import pathlib

    from pandas import DataFrame

    from mlx_notebook.gateway.handle import Handle
    from mlx_notebook.gateway.loading import ModelFacts
    from mlx_notebook.gateway.loop import EngineLoop
    from mlx_notebook.gateway.stats import GatewayStats
    from mlx_notebook.gateway.thread import Engine


class Observed:
    """Inherited by Gateway."""

    name: str
    model_name: str
    _engine: Engine
    _loop: EngineLoop
    _facts: ModelFacts

    if TYPE_CHECKING:

        def stats(self) -> GatewayStats:
            """As Gateway's."""
            ...

    # ------------------------------------------------------------ for views

    @property
    def engine(self) -> Engine:
        """The engine thread's door, for views."""
        return self._engine

    @property
    def loop(self) -> EngineLoop:
        """The engine's loop, whose plain figures anybody may read."""
        return self._loop

    def token_text(self, token_id: int) -> str:
        """What one token of the model's says by itself."""
        return self._facts.encoder.text_of(token_id)

    # ------------------------------------------------------------ looking

    def trace(self, *, text: bool = False) -> Trace:
        """What the log holds now, apart from the gateway: for figures, exports and views. Never waits.

        Args:
            text: take the prompts and answers of kept handles along.
        """
        taken = self._loop.ring.since(0)
        handles = [handle for handle in registry.handles() if handle.belongs_to(self._engine)]
        return Trace(
            title=self.name,
            columns=taken.columns,
            missed=taken.missed,
            about={handle.id: about(handle, text=text) for handle in handles},
            figures=self.stats().to_dict(),
            epoch_ns=time.time_ns() - time.monotonic_ns(),
            with_text=text,
            tenures=tuple(tenures_beside(self._engine)),
        )

    def requests(self) -> DataFrame:
        """A pandas frame, one row a request that the log knows; columns as in `mlx_notebook.trace.frames`."""
        return self.trace().requests()

    def steps(self) -> DataFrame:
        """A pandas frame, one row a decode step that the log knows."""
        return self.trace().steps()

    def tokens(self, *, text: bool = False) -> DataFrame:
        """A pandas frame, one row a token that the log knows; with `text`, what each said."""
        return self.trace(text=text).tokens()

    def save_trace(self, path: str | pathlib.Path, *, text: bool = False) -> pathlib.Path:
        """Write the log as a file that opens in Perfetto (ui.perfetto.dev), and in `mlx_notebook.load_trace`.

        Args:
            path: where to; a name that ends in `.gz` is compressed.
            text: write prompts and answers too. Without it no word of either is in the file, and no token's id
                or log-probability, from which a reader who has the model could tell the words.

        Returns:
            The path. Format: JSON object of the trace-event format.
        """
        return self.trace(text=text).save(path)

    # ------------------------------------------------------------ the reins

    @property
    def paused(self) -> bool:
        """Whether somebody paused the scheduler."""
        return self._engine.pausing.paused

    def pause(self) -> None:
        """Compute nothing more; returns when the step that was under way is done.

        Rows keep what they have, the device is free for others meanwhile, cancels and deadlines work. `resume()`,
        an interrupted wait, and closing the last dashboard make it go on.

        Raises:
            GatewayClosed, GatewayDead.
        """
        self._engine.pausing.pause()

    def resume(self) -> None:
        """Go on after `pause()` or `step()`."""
        self._engine.pausing.resume()

    def step(self, n: int = 1) -> None:
        """Compute `n` turns (each at most one chunk of prompts and one decode step), then pause.

        Returns when they are done, or when nothing is left to compute.

        Raises:
            WouldDeadlock: this thread holds the device lease, which the turns need.
        """
        self._engine.pausing.step(as_int("n", n, 1, 2**31 - 1, "a whole number from 1"))

    def slow_motion(self, seconds: float = 0.5) -> None:
        """Rest so many seconds after each step, so that people can watch; 0 for full speed.

        Raises:
            TypeError, ValueError: not a number from 0 to 60.
        """
        if isinstance(seconds, bool) or not isinstance(seconds, int | float):
            raise TypeError(f"seconds={seconds!r}: a number from 0 to 60")
        if not (math.isfinite(seconds) and 0 <= seconds <= 60):
            raise ValueError(f"seconds={seconds!r} is out of range: a number from 0 (full speed) to 60")
        self._engine.pausing.pace(float(seconds))


def about(handle: Handle, *, text: bool) -> About:
    """What a trace keeps of a handle; without `text`, nothing that anybody wrote."""
    options: dict[str, Any] = {k: v for k, v in handle.options.items() if text or wordless(v)}
    return About(
        id=handle.id,
        model=handle.model,
        options=options,
        prompt=handle.prompt_text if text else "",
        title=handle.title if text else "",
        pieces=tuple(handle.pieces()) if text else (),
        logprobs=tuple(one.logprob for one in handle.logprobs_so_far()),
        messages=handle.messages if text else (),
        beside=tuple((one.code, one.text) for one in handle.beside_the_log()),
    )


def wordless(value: Any) -> bool:
    """Whether a value holds no text at any depth, the names in a dictionary included: only numbers, flags, nothing."""
    if isinstance(value, dict):
        return all(wordless(key) and wordless(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return all(map(wordless, value))
    return value is None or isinstance(value, int | float)
