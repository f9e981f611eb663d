"""A row's figures: from stamped times to milliseconds and rates, None where an event never came."""

from __future__ import annotations

import pytest

from mlx_notebook.core.figures import figures_of
from mlx_notebook.core.rows import Row
from tests.core.driving import MS, request


def row(**times_ms: float) -> Row:
    made = Row(request(1, prompt=10), seq=0)
    made.token_ids = [7] * int(times_ms.pop("generated_tokens", 0))
    for name, value in times_ms.items():
        setattr(made, name, int(value * MS) if name.endswith("_ns") else int(value))
    return made


def test_a_finished_row() -> None:
    done = row(queued_ns=100, admitted_ns=130, first_token_ns=180, ended_ns=380, generated_tokens=5, cached_tokens=4)
    figures = figures_of(done, now_ns=999 * MS)
    assert figures.queue_ms == 30
    assert figures.prefill_ms == 50
    assert figures.decode_ms == 200
    assert figures.ttft_ms == 80
    assert figures.tpot_ms == 50  # four tokens after the first
    assert figures.prompt_tps == pytest.approx(6 / 0.050)
    assert figures.decode_tps == pytest.approx(4 / 0.200)


def test_what_never_came_is_none() -> None:
    figures = figures_of(row(queued_ns=100, ended_ns=150), now_ns=999 * MS)
    assert figures.queue_ms == 50
    nothing = (figures.prefill_ms, figures.decode_ms, figures.ttft_ms, figures.tpot_ms)
    assert nothing == (None,) * 4
    assert (figures.prompt_tps, figures.decode_tps) == (None, None)


def test_what_goes_on_counts_up_to_now() -> None:
    assert figures_of(row(queued_ns=100), now_ns=170 * MS).queue_ms == 70
    running = row(queued_ns=100, admitted_ns=110, first_token_ns=120, generated_tokens=3)
    assert figures_of(running, now_ns=160 * MS).decode_ms == 40
    assert figures_of(running, now_ns=160 * MS).tpot_ms == 20


def test_one_token_has_no_rate() -> None:
    figures = figures_of(row(queued_ns=1, admitted_ns=2, first_token_ns=3, ended_ns=3, generated_tokens=1), 9 * MS)
    assert (figures.decode_ms, figures.tpot_ms, figures.decode_tps) == (0, None, None)


def test_admitted_before_it_was_seen_to_be_asked_waited_no_negative_time() -> None:
    assert figures_of(row(queued_ns=100, admitted_ns=99), now_ns=200 * MS).queue_ms == 0
