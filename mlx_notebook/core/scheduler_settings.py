"""What a scheduler is made with, and the plain facts that it shows of itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from mlx_notebook.core.policy import BuiltIn
from mlx_notebook.core.projection import CacheCost

UNLIMITED = 1 << 62
"""A budget where nothing is counted."""

WORTH_WAITING = 128
"""Tokens of a beginning that another row reads: fewer are read again sooner than they are waited for."""


class LeaseState(StrEnum):
    """What the scheduler knows of the device."""

    NONE = "none"
    ASKED = "asked"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """What a scheduler is made with; equal settings and equal events give equal instructions.

    Attributes:
        max_rows: rows in the batch at once (prefill and decode together).
        chunk: prompt tokens a prefill chunk, cut at its multiples; None to size chunks by time.
        policy: order of admission.
        cost: what a row's caches take.
        context_length: tokens of prompt and answer together, None for no limit.
        budget: bytes that rows and entries may take together.
        prompt_cache: bytes that entries may take, 0 for none.
        trimmable: whether a kept state can be cut back to a shorter prefix.
        worth_waiting: tokens that another row's reading must spare a row for it to wait for that.
        deterministic: only states that prefill built, on chunk boundaries, are reused; prompts go alone.
    """

    max_rows: int = 1
    chunk: int | None = None
    policy: BuiltIn = BuiltIn.PRIORITY
    cost: CacheCost = field(default_factory=CacheCost)
    context_length: int | None = None
    budget: int = UNLIMITED
    prompt_cache: int = 0
    trimmable: bool = True
    worth_waiting: int = WORTH_WAITING
    deterministic: bool = False


@dataclass(slots=True)
class Counters:
    """How many rows came and how they went; steps taken."""

    submitted: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    steps: int = 0
