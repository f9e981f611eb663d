"""Whole runs through mlx-lm's own ways to make many answers."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from mlx_lm.generate import BatchGenerator, batch_generate

from benchmarks.fast.work import checked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.fast.shapes import Loaded

GENERATOR, GENERATE = "BatchGenerator", "batch_generate"
PREFILL = 8
"""Prompts that `BatchGenerator` reads at once, by its own default; `batch_generate` is asked to read all at once."""


def generator_of(loaded: Loaded, rows: int, answer: int) -> BatchGenerator:
    """One that decodes all of so many rows together."""
    return BatchGenerator(
        loaded.model, max_tokens=answer, completion_batch_size=max(32, rows), prefill_batch_size=PREFILL
    )


def finish(generator: BatchGenerator, made: dict[int, int], left: int) -> None:
    """Let it answer all that was inserted; counts tokens into `made`."""
    while left:
        for response in generator.next()[1]:
            made[response.uid] += 1
            left -= response.finish_reason is not None


def run_generator(
    loaded: Loaded, prompts: Sequence[list[int]], answer: int, caches: list[Any] | None = None
) -> dict[str, float]:
    """All prompts at once through `BatchGenerator`, going on from `caches` where there are some."""
    began = time.perf_counter()
    generator = generator_of(loaded, len(prompts), answer)
    made = dict.fromkeys(generator.insert(list(prompts), caches=caches), 0)
    finish(generator, made, len(made))
    spent = time.perf_counter() - began
    generator.close()
    return {"rate": checked(list(made.values()), answer, GENERATOR) / spent, "seconds": spent}


def run_generate(loaded: Loaded, prompts: Sequence[list[int]], answer: int) -> dict[str, float]:
    """The same through `batch_generate`."""
    rows = len(prompts)
    began = time.perf_counter()
    response = batch_generate(
        loaded.model,
        loaded.tokenizer,
        list(prompts),
        max_tokens=answer,
        return_token_ids=True,
        completion_batch_size=max(32, rows),
        prefill_batch_size=rows,
    )
    spent = time.perf_counter() - began
    made = [len(ids) for ids in response.token_ids or []]
    return {"rate": checked(made, answer, GENERATE) / spent, "seconds": spent}
