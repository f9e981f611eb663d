"""Figures of a run, in matplotlib: occupancy, latencies, and a Gantt chart of the requests.

Each takes a gateway, or a trace (`gateway.trace()`, `mlx_notebook.load_trace(path)`). `occupancy` and `gantt` return
the matplotlib Axes that they drew on, and take `ax` to draw on yours; `latencies` draws on several, takes them as
`axes`, and returns the Figure. matplotlib is imported when the first is drawn.
Colours are the views' own: one a state, told apart by colour-blind people too, and never alone
(hatches, marks and words stand beside them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_notebook.core.segments import segments_of
from mlx_notebook.trace.chrome import rates
from mlx_notebook.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mlx_notebook.core.recording import RequestTrace

STATES = {
    "queued": "#676e77",
    "prefill": "#966300",
    "decode": "#0072b2",
    "finished": "#00795b",
    "cancelled": "#a8497f",
    "failed": "#bb4b00",
}
"""Colour of each state, as in the views (`js/src/palette.css`)."""

MARKS = {"finished": "|", "cancelled": "x", "failed": "X"}
"""What stands at a request's end."""

METRICS = {
    "queue_ms": "in the queue",
    "ttft_ms": "to the first token",
    "tpot_ms": "per token after it",
}
"""Latencies that are drawn, with their words."""

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"

MOST_ROWS = 60
"""A Gantt chart of more requests cannot be read; the last ones are drawn."""


def _trace_of(run: Any) -> Trace:
    if isinstance(run, Trace):
        return run
    trace = getattr(run, "trace", None)
    made = trace() if callable(trace) else None
    if not isinstance(made, Trace):
        raise TypeError(f"a gateway or a trace, not {type(run).__name__}")
    return made


def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    _, made = plt.subplots(figsize=size, layout="constrained")
    return made


def _quiet(ax: Axes) -> None:
    """Only what says something: no box, a light grid."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.grid(visible=True, axis="both", color="#d8dee4", linewidth=0.6)
    ax.set_axisbelow(True)


def _nothing(ax: Axes, what: str) -> Axes:
    ax.text(0.5, 0.5, f"no {what} in this run", ha="center", va="center", transform=ax.transAxes, color="#656d76")
    ax.set_xticks([])
    ax.set_yticks([])
    return ax


# ---------------------------------------------------------------- occupancy


def occupancy(run: Any, ax: Axes | None = None) -> Axes:
    """Rows in each step and rows that waited, over seconds; tokens a second on a second scale.

    Args:
        run: a gateway or a trace.
        ax: where to draw; a figure of its own if None.

    Raises:
        TypeError: `run` is neither.
    """
    trace = _trace_of(run)
    recording = trace.recording
    ax = _axes(ax, (9.0, 3.4))
    steps = recording.steps
    if not len(steps):
        return _nothing(ax, "steps")
    times, rows, queued = _held(trace)
    ax.fill_between(times, rows, step="post", color=STATES["decode"], alpha=0.35, linewidth=0, label="rows in the step")
    ax.step(times, rows, where="post", color=STATES["decode"], linewidth=1.2)
    ax.step(times, queued, where="post", color=STATES["queued"], linestyle=(0, (3, 2)), label="rows that wait")
    ax.set_xlabel("seconds")
    ax.set_ylabel("rows")
    ax.set_ylim(0, max(*rows, *queued, 1) * 1.15)
    ax.set_xlim(times[0], times[-1])
    _quiet(ax)
    other = ax.twinx()
    began = recording.begin_ns
    marks = rates(recording, max(recording.now_ns - began, 1) // 30 + 1)
    other.step(
        [(at - began) / 1e9 for at, _ in marks],
        [rate for _, rate in marks],
        where="post",
        color=STATES["failed"],
        linewidth=1.2,
        label="tokens per second (right)",
    )
    other.set_ylabel("tokens per second")
    other.set_ylim(bottom=0)
    other.spines["top"].set_visible(False)
    handles = [*ax.get_legend_handles_labels()[0], *other.get_legend_handles_labels()[0]]
    other.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=3, frameon=False)
    return ax


def _held(trace: Trace) -> tuple[list[float], list[int], list[int]]:
    """Times in seconds with the rows of the step that begins then; 0 where the engine rests for long."""
    steps, began = trace.recording.steps, trace.recording.begin_ns
    times: list[float] = []
    rows: list[int] = []
    queued: list[int] = []
    last = None
    for start, end, count, waits in zip(steps["start"], steps["end"], steps["rows"], steps["queued"], strict=True):
        if last is not None and start - last > max(50_000_000, 3 * (end - start)):
            times.append((last - began) / 1e9)
            rows.append(0)
            queued.append(queued[-1])
        times.append((start - began) / 1e9)
        rows.append(count)
        queued.append(waits)
        last = end
    if last is not None:
        times.append((last - began) / 1e9)
        rows.append(0)
        queued.append(0)
    return times, rows, queued


# ---------------------------------------------------------------- latencies


def latencies(run: Any, metrics: Sequence[str] = tuple(METRICS), axes: Sequence[Axes] | None = None) -> Figure:
    """How long requests waited, how long to their first token, and per token: each a cumulative distribution.

    A curve says: so many percent of the requests took at most so long. The median and the slowest tenth are marked.

    Args:
        run: a gateway or a trace.
        metrics: of `queue_ms`, `ttft_ms`, `tpot_ms`.
        axes: one for each metric; a figure of its own if None.

    Raises:
        TypeError: `run` is neither.
        ValueError: an unknown metric, or another number of axes; both are said.
    """
    unknown = [name for name in metrics if name not in METRICS]
    if unknown or not metrics:
        raise ValueError(f"metrics={list(metrics)!r}: some of {', '.join(METRICS)}")
    frame = _trace_of(run).requests()
    if axes is None:
        import matplotlib.pyplot as plt

        _, made = plt.subplots(1, len(metrics), figsize=(3.4 * len(metrics), 3.0), layout="constrained")
        axes = [made] if len(metrics) == 1 else list(made)
    elif len(axes) != len(metrics):
        raise ValueError(f"{len(metrics)} metrics need {len(metrics)} axes, not {len(axes)}")
    for ax, metric in zip(axes, metrics, strict=True):
        _distribution(ax, sorted(frame[metric].dropna().astype(float)), METRICS[metric])
    figure: Any = axes[0].figure
    while figure.figure is not figure:  # a part of a figure
        figure = figure.figure
    whole: Figure = figure
    return whole


def _distribution(ax: Axes, values: list[float], words: str) -> None:
    ax.set_title(words, fontsize=10)
    in_seconds = bool(values) and values[-1] >= 10_000
    scale = 1000 if in_seconds else 1
    values = [value / scale for value in values]
    if not values:
        _nothing(ax, "such requests")
        return
    shares = [100 * (place + 1) / len(values) for place in range(len(values))]
    ax.step([values[0], *values], [0.0, *shares], where="post", color=STATES["decode"], linewidth=1.6)
    if len(values) <= 40:
        ax.plot(values, shares, ".", color=STATES["decode"], markersize=5)
    for share, style in ((50, "-"), (90, "--")):
        value = values[min(len(values) - 1, -(-share * len(values) // 100) - 1)]
        ax.axvline(value, color=STATES["prefill"], linestyle=style, linewidth=1.1)
        beyond = value > (values[0] + values[-1]) / 2
        ax.annotate(
            f"{share} %: {value:,.{1 if value < 10 else 0}f} {'s' if in_seconds else 'ms'}",
            (value, 4 if share == 50 else 14),
            xytext=(-4 if beyond else 4, 0),
            textcoords="offset points",
            ha="right" if beyond else "left",
            fontsize=8,
            color=STATES["prefill"],
            bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.8},
        )
    ax.set_xlabel("seconds" if in_seconds else "milliseconds")
    ax.set_ylabel("% of requests")
    ax.set_ylim(0, 104)
    ax.margins(x=0.12)
    _quiet(ax)


# ---------------------------------------------------------------- Gantt


def gantt(run: Any, ax: Axes | None = None, *, rows: Sequence[int] | None = None) -> Axes:
    """A line a request over seconds: hatched while it waited, then reading its prompt, then writing; a mark at its end.

    Args:
        run: a gateway or a trace.
        ax: where to draw; a figure of its own if None.
        rows: ids of the requests to draw; the last MOST_ROWS if None.

    Raises:
        TypeError: `run` is neither.
        ValueError: the run has no request of such an id.
    """
    trace = _trace_of(run)
    known = [row for row in trace.recording.requests.values() if row.submit_ns >= 0]
    if rows is not None:
        missing = sorted(set(rows) - {row.id for row in known})
        if missing:
            raise ValueError(f"the run has no request {missing[0]}")
        known = [row for row in known if row.id in set(rows)]
    known = known[-MOST_ROWS:]
    ax = _axes(ax, (9.0, max(1.8, 0.26 * len(known) + 1.1)))
    if not known:
        return _nothing(ax, "requests")
    for place, row in enumerate(known):
        _bar(trace, ax, place, row)
    ax.set_yticks(range(len(known)), [_label(trace, row) for row in known])
    ax.set_ylim(len(known) - 0.5, -0.5)
    ax.set_xlabel("seconds")
    _quiet(ax)
    ax.grid(visible=False, axis="y")
    _legend(ax, known)
    return ax


_PHASES = {"queue": "queued", "prefill": "prefill", "decode": "decode"}


def _bar(trace: Trace, ax: Axes, place: int, row: RequestTrace) -> None:
    recording = trace.recording
    began = recording.begin_ns
    segments = segments_of(recording, row.id)
    for phase, state in _PHASES.items():
        own = [one for one in segments if one.phase == phase]
        if not own:
            continue
        start, end = (own[0].start_ns - began) / 1e9, (own[-1].end_ns - began) / 1e9
        waits = phase == "queue"
        ax.barh(
            place,
            end - start,
            left=start,
            height=0.66,
            color="none" if waits else STATES[state],
            alpha=1.0 if phase == "prefill" else 0.75,
            hatch="////" if waits else None,
            edgecolor=STATES["queued"] if waits else "none",
            linewidth=0,
        )
    chunks = recording.chunks
    mine = [
        i for i in recording.chunks_between(row.submit_ns, row.over_ns(recording.now_ns)) if chunks["row"][i] == row.id
    ]
    thin = (recording.now_ns - began) / 200
    for i in mine:
        if chunks["end"][i] - chunks["start"][i] > thin:  # where one chunk ends and the next begins, if it can be seen
            at = (chunks["end"][i] - began) / 1e9
            ax.plot([at, at], [place - 0.33, place + 0.33], color="white", linewidth=0.9)
    if row.end_ns >= 0:
        state = str(row.status)
        ax.plot((row.end_ns - began) / 1e9, place, MARKS[state], color=STATES[state], markersize=8, mew=2)


def _label(trace: Trace, row: RequestTrace) -> str:
    title = trace.title_of(row.id)
    # matplotlib reads dollars as mathematics, and its fonts have no control characters.
    shown = "".join(c for c in title if c.isprintable()).replace("$", r"\$")
    return f"{row.id}  {shown if len(shown) <= 26 else shown[:25].rstrip() + ELLIPSIS}".rstrip()


def _legend(ax: Axes, rows: Sequence[RequestTrace]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    parts: list[Any] = [
        Patch(facecolor="none", edgecolor=STATES["queued"], hatch="////", linewidth=0, label="waiting"),
        Patch(facecolor=STATES["prefill"], label="reading the prompt"),
        Patch(facecolor=STATES["decode"], alpha=0.75, label="writing"),
    ]
    for state, mark in MARKS.items():
        if any(str(row.status) == state for row in rows):
            line = Line2D([], [], color=STATES[state], marker=mark, linestyle="none", markersize=8, mew=2, label=state)
            parts.append(line)
    ax.legend(
        handles=parts,
        loc="upper center",
        bbox_to_anchor=(0.5, 1.0 + 0.9 / max(3, len(rows) + 1)),
        ncols=6,
        frameon=False,
        fontsize=9,
    )
