"""What `%mlxload` does: makes a gateway with a bar that a reader can watch, and says what came of it."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from mlx_notebook.errors import MlxNotebookError, OverBudget
from mlx_notebook.gateway.loading import NamedModel
from mlx_notebook.gateway.registry import registry, short_name
from mlx_notebook.gateway.settings import Settings, check_settings
from mlx_notebook.gateway.sizes import show_bytes
from mlx_notebook.gateway.tuning import serving_of
from mlx_notebook.models.resolve import resolve
from mlx_notebook.notebook import execution
from mlx_notebook.notebook.printing import in_one_line, numbers, say, write
from mlx_notebook.notebook.settings import Mode
from mlx_notebook.notebook.status import budget_words
from mlx_notebook.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.models.blas import BlasStatus

BAR_CELLS = 24
DRAW_S = 0.1
REVISION_CHARACTERS = 12
"""Enough of a checksum to tell two apart; `gateway.revision` is the whole."""


def load_model(model: str | Path, options: Mapping[str, Any], mode: Mode) -> Gateway:
    """Load a model under a gateway that stays until it is unloaded, and make it current.

    A gateway that has the name already serves on until the new one is loaded, and closes then; with
    `replace` among the options it closes first, for models that do not fit beside each other.

    Raises:
        UsageError: rows run under that name.
        MlxNotebookError, ValueError, TypeError: as `Gateway` raises them; what was loaded stays as it was.
    """
    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.models.blas import preload_blas

    settings = {"name": short_name(str(model)), **options}
    first = bool(settings.pop("replace", False))
    bar = LoadBar(str(model), shown=mode is not Mode.BATCH)
    try:
        checked = check_settings(**settings)
        _refuse_while_rows_run(settings["name"])
        _say_what_comes_first()
        blas = preload_blas()
        resolved = resolve(model, revision=settings.get("revision"), progress=bar)
        if first:
            _close_for(NamedModel(resolved, serving_of(checked), checked.dtype, checked.trust_remote_code), checked)
        # The rule that a cell made again replaces what it made before is the name's here, not the cell's.
        with execution.apart():
            gateway = Gateway(model, replace=True, progress=bar, **settings)
    except OverBudget as error:
        raise in_one_line(_with_advice(error)) from None
    except (MlxNotebookError, ValueError, TypeError, KeyboardInterrupt) as error:
        raise in_one_line(error) from None
    finally:
        bar.clear()
    registry.hold(gateway)
    _say_loaded(gateway, blas)
    return gateway


def _refuse_while_rows_run(name: str) -> None:
    """A gateway that is taken over must not lose rows: they are a user's work."""
    gateway = registry.gateways().get(name)
    if gateway is None or not gateway.handles:
        return
    rows = numbers(gateway.handles)
    runs = "still runs" if len(gateway.handles) == 1 else "still run"
    raise UsageError(
        f"%mlxload: {rows} {runs} under the name {name!r}: wait for the end, or %mlxcancel all, or give another --name"
    )


def _say_what_comes_first() -> None:
    running = registry.live_handles()
    if running:
        say(f"The load begins when {numbers(running)} {'is' if len(running) == 1 else 'are'} over.")


def _close_for(named: NamedModel, settings: Settings) -> None:
    """Close the gateway whose name the new one takes, unless the new one's files show that it cannot be loaded."""
    gateway = registry.gateways().get(settings.name or "")
    if gateway is not None:
        named.check([gateway])
        gateway.close()


def _with_advice(error: OverBudget) -> OverBudget:
    if not registry.gateways():
        return error
    held = ", ".join(registry.gateways())
    text = f"{error} Loaded now: {held}. --replace closes the one of the same name first, %mlxunload any other."
    return OverBudget(text, needed=error.needed, budget=error.budget)


def _say_loaded(gateway: Gateway, blas: BlasStatus) -> None:
    from mlx_notebook.models.backend_check import slowed_by

    stats = gateway.stats()
    model = "" if gateway.model_name == gateway.name else f"{gateway.model_name}, "
    say(f"{gateway.name} is loaded and current ({model}{stats.device}).")
    lines = [
        ("source", gateway.source),
        ("revision", (gateway.revision or "none")[:REVISION_CHARACTERS]),
        ("memory", f"{show_bytes(stats.weight_bytes)} of weights; rows may take {budget_words(stats)}"),
        ("sampling", _recommended(gateway.recommended_sampling)),
    ]
    for word, text in lines:
        say(f"  {word:9} {text}")
    if slowed_by(stats.dtype):
        say(f"  slow      {stats.dtype} runs slower than float32 on a CPU: --dtype float32, where it fits")
    if blas.slow:
        say(f"  slow      MLX computes with its slow BLAS: {blas.advice}")


def _recommended(sampling: Mapping[str, Any]) -> str:
    if not sampling:
        return "the model recommends none of its own"
    values = " ".join(f"{name}={value}" for name, value in sampling.items())
    return f"the model recommends {values} (--sampling model takes it)"


class LoadBar:
    """One line that grows while a model loads, and is gone afterwards.

    The loader reports on the engine thread; only the thread that made the bar writes.
    """

    def __init__(self, model: str, *, shown: bool) -> None:
        self._model = printable(model)
        self._shown = shown and _is_live()
        self._thread = threading.get_ident()
        self._drawn_at = 0.0
        self._width = 0

    def __call__(self, what: str, fraction: float | None) -> None:
        """Take a report: a word for what is being done, and the share done (None: unknown)."""
        if not self._shown or threading.get_ident() != self._thread:
            return
        now = time.monotonic()
        if now - self._drawn_at >= DRAW_S:
            self._drawn_at = now
            self._write(self._line(what, fraction))

    def clear(self) -> None:
        """Wipe the line."""
        if self._width:
            self._write("")
            write("\r")
            self._width = 0

    def _line(self, what: str, fraction: float | None) -> str:
        start = f"{self._model}: {printable(what)}"
        if fraction is None:
            return f"{start} ..."
        share = min(1.0, max(0.0, fraction))
        done = round(share * BAR_CELLS)
        return f"{start} [{'#' * done}{'.' * (BAR_CELLS - done)}] {share:4.0%}"

    def _write(self, line: str) -> None:
        line = line[: shutil.get_terminal_size().columns - 1]
        write("\r" + line.ljust(self._width))
        self._width = max(self._width, len(line))


def _is_live() -> bool:
    """Whether a line may be drawn over: a terminal, or a notebook's page."""
    from IPython.core.getipython import get_ipython

    return sys.stdout.isatty() or getattr(get_ipython(), "kernel", None) is not None
