"""The live line: what it says, where it is shown, and that it leaves nothing behind."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pytest

from mlx_notebook.gateway.frames.progress import Pace, Silent, State, Terminal, meter_for
from mlx_notebook.gateway.hooks import hooks

if TYPE_CHECKING:
    from mlx_notebook.gateway.gateway import Gateway


def test_the_line() -> None:
    state = State(done=128, total=500, failed=3, running=8, tokens_per_s=412.4, left_s=130.0)
    assert str(state) == "128 of 500 rows, 3 failed, 412 tokens/s, about 2 min left"
    assert str(State(0, 5, 0, 1, None, None)) == "0 of 5 rows"


def test_pace_counts_only_what_this_run_did(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("mlx_notebook.gateway.frames.progress.time.monotonic", lambda: now)
    pace = Pace(total=30, done=10)
    assert pace.state(0, 2).left_s is None
    now += 4.0
    pace.done += 5
    state = pace.state(200, 2)
    assert state.left_s == pytest.approx(4.0 / 5 * 15)
    assert state.tokens_per_s == pytest.approx(50.0)


def test_a_terminal_s_line_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    meter = Terminal()
    meter.show(State(1, 2, 0, 1, None, None))
    meter.close("2 complete")
    assert out.getvalue() == "\r1 of 2 rows\r" + " " * 11 + "\r2 complete\n"


def test_who_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert isinstance(meter_for(live=True), Terminal)
    assert isinstance(meter_for(live=False), Silent)
    hooks.progress = lambda: None  # a tool that runs notebooks
    assert isinstance(meter_for(live=True), Silent)
    own = Silent()
    hooks.progress = lambda: own
    assert meter_for(live=True) is own
    assert meter_for(live=False) is not own


def test_without_a_page_or_terminal_only_the_last_line_is_printed(
    gw: Gateway, capsys: pytest.CaptureFixture[str]
) -> None:
    gw.map(["STOP"] * 20, max_tokens=3)
    assert capsys.readouterr().out == "20 complete\n"


def test_the_meter_hears_of_every_stage(gw: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlx_notebook.gateway.frames.mapping.DRAW_S", 0.0)
    states: list[State] = []

    class Noted(Silent):
        def show(self, state: State) -> None:
            states.append(state)

    hooks.progress = Noted
    gw.map(["a", "FAIL"] * 10, max_tokens=3)
    assert [s.done for s in states] == sorted(s.done for s in states)
    assert states[-1].done == 20
    assert states[-1].failed == 10
