"""The plot of docs/performance.md, from the kept results: `python -m benchmarks.figures`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS

IMAGE = Path(__file__).parent.parent / "docs" / "images" / "fast_growth.png"
STEP = re.compile(r"decode step, (\d+) rows? of ([\d,]+) tokens")
SIDES = (("ours", "#0072b2", "o"), ("BatchGenerator", "#b87a00", "s"))


def steps_of(result: dict[str, Any]) -> list[tuple[int, int, dict[str, float], dict[str, float]]]:
    """Rows, tokens, and the spreads of both sides, of a kept table of growth."""
    found = []
    for line in result["lines"]:
        match = STEP.fullmatch(line["what"])
        if match is None:
            raise ValueError(f"not a line of growth: {line['what']!r}")
        found.append((int(match[1]), int(match[2].replace(",", "")), line["ours"], line["theirs"]))
    return found


def draw(result: dict[str, Any], image: Path) -> None:
    """Two panels: rows double at one length, lengths double at one number of rows."""
    from matplotlib.figure import Figure

    steps = steps_of(result)
    shortest = min(tokens for _, tokens, *_ in steps)
    rows_of_long = max(rows for rows, tokens, *_ in steps if tokens > shortest)
    panels: dict[str, list[tuple[Any, ...]]] = {
        f"rows of {shortest} tokens": [(rows, *sides) for rows, tokens, *sides in steps if tokens == shortest],
        f"tokens of each of {rows_of_long} rows": [
            (tokens, *sides) for rows, tokens, *sides in steps if rows == rows_of_long
        ],
    }
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for axes, (label, points) in zip(figure.subplots(1, 2, sharey=True), panels.items(), strict=True):
        at = [point[0] for point in points]
        for side, (name, colour, mark) in enumerate(SIDES, 1):
            spread = [point[side] for point in points]
            axes.plot(at, [one["median"] for one in spread], mark + "-", color=colour, label=name)
            axes.fill_between(
                at, [one["low"] for one in spread], [one["high"] for one in spread], color=colour, alpha=0.2
            )
        axes.set_xscale("log", base=2)
        axes.set_xticks(at, [f"{one:,}" for one in at])
        axes.set_xlabel(label)
        axes.grid(visible=True, axis="y", alpha=0.3)
    figure.axes[0].set_ylim(bottom=0)  # after all is drawn: both share it
    figure.axes[0].set_ylabel("ms a decode step")
    figure.axes[0].legend(frameon=False)
    figure.savefig(image, dpi=120)


def main() -> int:
    """Draw it."""
    draw(json.loads((RESULTS / "fast_growth_1B.json").read_text()), IMAGE)
    print(IMAGE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
