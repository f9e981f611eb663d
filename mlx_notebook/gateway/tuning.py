"""What an engine's scheduler is made with, once its model is loaded: rows, chunks, budget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_notebook.core import events as ev
from mlx_notebook.core.policy import BuiltIn
from mlx_notebook.core.scheduler import UNLIMITED, SchedulerSettings
from mlx_notebook.gateway.ledger import Account, ledger
from mlx_notebook.gateway.loading import Serving

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.gateway.settings import Settings
    from mlx_notebook.gateway.thread import Engine

AUTO_ROWS = 32
"""Rows at once where the user says "auto": beyond it a step costs more on most machines than it brings."""

DETERMINISTIC_CHUNK = 128
"""Prompt tokens a chunk in deterministic mode: prompts are cut at its multiples, whatever else runs."""


def serving_of(settings: Settings) -> Serving:
    """How a gateway with these settings has its model served."""
    return Serving(settings.kv, settings.batch or AUTO_ROWS, settings.deterministic)


def settings_for(settings: Settings) -> Callable[[Engine], SchedulerSettings]:
    """How a gateway with these settings tunes its engine. Knows the engine, never the gateway."""

    def tune(engine: Engine) -> SchedulerSettings:
        can = engine.capabilities
        chunk = settings.chunk
        if settings.deterministic and chunk is None:
            chunk = DETERMINISTIC_CHUNK
        return SchedulerSettings(
            max_rows=rows_at_once(settings.batch, most=can.max_rows, continuous=can.continuous),
            chunk=chunk,
            policy=settings.policy if isinstance(settings.policy, BuiltIn) else BuiltIn.PRIORITY,
            cost=can.cost,
            context_length=can.context_length,
            budget=_budget(engine, settings),
            prompt_cache=settings.prompt_cache if can.prompt_cache else 0,
            trimmable=can.trimmable,
            deterministic=settings.deterministic,
        )

    return tune


def rows_at_once(batch: int | None, *, most: int, continuous: bool) -> int:
    """The batch's size: what the user said or the default, within what the model can do."""
    return min(batch or AUTO_ROWS, most) if continuous else 1


def _budget(engine: Engine, settings: Settings) -> int:
    if not engine.capabilities.kv_bytes_per_token and not engine.capabilities.cost.of(1):
        return UNLIMITED
    account = Account(settings.kv_budget, held=lambda: _held(engine), tell=lambda nbytes: _tell(engine, nbytes))
    engine.at_end.append(lambda: ledger.leave(engine, engine.free_bytes()))
    return ledger.join(engine, account, engine.free_bytes())


def _held(engine: Engine) -> int:
    return 0 if engine.loop is None else engine.loop.held_bytes


def _tell(engine: Engine, nbytes: int) -> None:
    loop = engine.loop
    if loop is not None:
        engine.call_soon(lambda at: loop.feed(ev.BudgetSet(at, nbytes)))
