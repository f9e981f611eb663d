"""The benchmarks of batches: the lines that they promise, their prompts, and what they count as needed."""

from __future__ import annotations

import pytest

from benchmarks import batch_decode, batch_shapes, held_bytes, joining
from benchmarks.batching import LOOP, OURS, PEER, checked, prompts_of
from tests.small_models import small, tiny_tokenizer


def test_equal_rows_beside_both_peers() -> None:
    cases = [(OURS, 1), (PEER, 1), (LOOP, 1), (OURS, 8), (PEER, 8), (LOOP, 8), (OURS, 32), (PEER, 32)]
    samples = {batch_decode.named(side, rows): [{"rate": 2.0}] * 2 for side, rows in cases}
    lines = batch_decode.lines(samples)
    assert [line.bar for line in lines] == [None, None, 0.98, 4.2, None]
    assert [line.met for line in lines] == [None, None, True, False, None]


def test_shapes_and_joins_have_their_bars() -> None:
    shapes = {f"{side}, {shape}": [{"rate": 3.0}] for side in (OURS, PEER) for shape in batch_shapes.WHAT}
    assert [line.bar for line in batch_shapes.lines(shapes)] == [1.3, 2.0]
    gaps = {
        **{f"{side}, stream": [{"rate": 3.0}] for side in (OURS, PEER)},
        OURS: [{"gap_ms": 100.0, "share": 0.9}],
        joining.LIMIT: [{"share": 1.0}],
        joining.EARLY: [{"gap_ms": 80.0}],
        joining.WORST: [{"gap_ms": 300.0}],
    }
    assert [line.met for line in joining.lines(gaps)] == [None, True, None, False]
    assert joining.allowed(0.1) == pytest.approx(0.25)
    assert joining.gaps_of([1.0, 2.0, 5.0]) == [1.0, 3.0]


def test_what_is_held_is_set_beside_what_was_needed() -> None:
    names = (*held_bytes.MODELS, *(f"{kind}: need" for kind in held_bytes.MODELS))
    lines = held_bytes.lines({name: [dict.fromkeys(held_bytes.MEASURES, 5.0)] for name in names})
    assert len(lines) == len(held_bytes.MODELS) * len(held_bytes.MEASURES)
    assert [line.bar for line in lines[:4]] == [1.3, None, None, None]
    assert all(line.ratio.median == 1.0 for line in lines)


def test_need_is_columns_in_blocks_up_to_the_window_and_constant_state() -> None:
    column = 2 * 2 * 16 * 4  # keys and values, two heads of 16, float32
    assert [held_bytes.need_of(small("llama")[0])(n) // (2 * column) for n in (1, 64, 65)] == [64, 64, 128]
    gemma = held_bytes.need_of(small("gemma3_text")[0])
    assert gemma(1_000) == (2 * 1_024 + 2 * 16) * column  # two of its four layers keep 16
    recurrent = held_bytes.need_of(small("mamba2")[0])
    assert recurrent(1) == recurrent(1_000) > 0


def test_prompts_have_their_lengths_and_share_no_beginning() -> None:
    prompts = prompts_of(tiny_tokenizer(), [28, 28, 4_000])
    assert [len(prompt) for prompt in prompts] == [28, 28, 4_000]
    assert len({tuple(prompt[:4]) for prompt in prompts}) == 3


def test_rows_that_stop_early_are_no_comparison() -> None:
    assert checked([3, 3], 3, OURS) == 6
    with pytest.raises(RuntimeError, match=r"gateway: rows made \[3, 2\] tokens, 3 each"):
        checked([3, 2], 3, OURS)
