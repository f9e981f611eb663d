"""The plot of the performance page is drawn from what is kept."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benchmarks.figures import draw, steps_of
from benchmarks.harness import RESULTS

if TYPE_CHECKING:
    from pathlib import Path


def test_the_kept_table_is_drawn(tmp_path: Path) -> None:
    result = json.loads((RESULTS / "fast_growth_1B.json").read_text())
    steps = steps_of(result)
    assert len(steps) == len(result["lines"])
    assert {tokens for rows, tokens, *_ in steps if rows == 128} == {128}
    draw(result, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_another_table_is_refused() -> None:
    with pytest.raises(ValueError, match="not a line of growth: 'whole runs'"):
        steps_of({"lines": [{"what": "whole runs"}]})
