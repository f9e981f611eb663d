"""Figures: what is drawn is what the trace says; wrong arguments are named. Their look is in docs/images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import pytest
from matplotlib.colors import same_color

import mlx_notebook as mn
from mlx_notebook import plots
from mlx_notebook.core.placement import Capabilities
from mlx_notebook.core.ring import COLUMNS
from mlx_notebook.gateway.gateway import Gateway

mpl.use("Agg")

import matplotlib.pyplot as plt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from matplotlib.axes import Axes

DRAWN = (plots.occupancy, plots.gantt, plots.latencies)


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    can = Capabilities(vocab_size=0x110000, context_length=5000, max_rows=2, continuous=True)
    with Gateway.from_backend(mn.ScriptedBackend(capabilities=can, step_s=0.001)) as made:
        handles = [made.submit(f"price: $a_{place}$ \x07", max_tokens=4) for place in range(5)]
        handles[4].cancel()
        for handle in handles:
            handle.exception(60)
        yield made


@pytest.fixture
def trace(gateway: Gateway) -> mn.Trace:
    return gateway.trace(text=True)


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.mark.parametrize("draw", DRAWN)
def test_from_a_gateway_and_from_a_trace(draw: Callable[[object], object], gateway: Gateway, trace: mn.Trace) -> None:
    for run in (gateway, trace):
        draw(run)
        plt.gcf().canvas.draw()


@pytest.mark.parametrize("draw", DRAWN)
def test_of_nothing(draw: Callable[[object], object]) -> None:
    draw(mn.Trace("empty", {name: [] for name in COLUMNS}))
    plt.gcf().canvas.draw()
    shown = [text.get_text() for ax in plt.gcf().axes for text in ax.texts]
    assert any(text.startswith("no ") for text in shown)


@pytest.mark.parametrize("draw", DRAWN)
@pytest.mark.parametrize("run", ["run.json", None, 3])
def test_of_something_else(draw: Callable[[object], object], run: object) -> None:
    with pytest.raises(TypeError, match="a gateway or a trace, not"):
        draw(run)


def test_rows_of_each_step(trace: mn.Trace) -> None:
    ax = plots.occupancy(trace)
    line: Any = next(line for line in ax.lines if line.get_color() == plots.STATES["decode"])
    drawn = [float(y) for y in line.get_ydata()]
    assert max(drawn) == trace.steps().rows.max() == 2
    assert drawn[-1] == 0
    assert ax.get_xlim()[1] == pytest.approx(trace.steps().end_s.iloc[-1])


def test_a_bar_a_phase(trace: mn.Trace) -> None:
    ax = plots.gantt(trace)
    frame = trace.requests()
    drawn = dict.fromkeys(("queue", "prefill", "decode"), 0.0)
    bars: Any = ax.patches
    for bar in bars:
        which = "queue" if bar.get_hatch() else "prefill" if _is(bar, "prefill") else "decode"
        drawn[which] += bar.get_width() * 1000
    for phase, ms in drawn.items():
        assert ms == pytest.approx(frame[f"{phase}_ms"].sum(), rel=0.01)
    assert [label.get_text().split()[0] for label in ax.get_yticklabels()] == [str(row_id) for row_id in frame.index]


def _is(bar: Any, state: str) -> bool:
    return same_color(bar.get_facecolor()[:3], plots.STATES[state])


def test_titles_are_text_not_mathematics(trace: mn.Trace) -> None:
    label = plots.gantt(trace).get_yticklabels()[0].get_text()
    assert r"price: \$a_0\$" in label
    assert "\x07" not in label


def test_some_requests(trace: mn.Trace) -> None:
    ids = list(trace.recording.requests)
    assert len(plots.gantt(trace, rows=ids[1:3]).get_yticklabels()) == 2
    with pytest.raises(ValueError, match="no request 999"):
        plots.gantt(trace, rows=[999])


def test_distributions_reach_all(trace: mn.Trace) -> None:
    figure = plots.latencies(trace, ["queue_ms"])
    (ax,) = figure.axes
    curve: Any = ax.lines[0]
    assert curve.get_ydata()[-1] == 100
    assert curve.get_xdata()[-1] == pytest.approx(trace.requests().queue_ms.max())


@pytest.mark.parametrize("metrics", [["speed"], []])
def test_unknown_metrics(trace: mn.Trace, metrics: list[str]) -> None:
    with pytest.raises(ValueError, match="some of queue_ms, ttft_ms, tpot_ms"):
        plots.latencies(trace, metrics)


def test_axes_of_one_s_own(trace: mn.Trace) -> None:
    axes: Axes
    figure, axes = plt.subplots()
    assert plots.gantt(trace, axes) is axes
    assert plots.latencies(trace, ["ttft_ms"], [axes]) is figure
    with pytest.raises(ValueError, match="2 metrics need 2 axes, not 1"):
        plots.latencies(trace, ["ttft_ms", "tpot_ms"], [axes])


def test_colours_are_the_views_own() -> None:
    import pathlib
    import re

    css = (pathlib.Path(mn.__file__).parent.parent / "js" / "src" / "palette.css").read_text(encoding="utf-8")
    light = dict(reversed(re.findall(r"--mlx-(\w+): (#[0-9a-f]{6})", css)))
    assert {state: light[state] for state in plots.STATES} == plots.STATES
