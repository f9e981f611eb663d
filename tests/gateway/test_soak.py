"""A thousand short requests, sixty-four at a time, leave nothing behind; `benchmarks.soak` is the full run."""

from __future__ import annotations

import json
import subprocess
import sys
from array import array
from collections import Counter
from pathlib import Path

import pytest

from tests.gateway.soaking import KINDS, PROMPT_CACHE, ROWS, Soak

pytestmark = pytest.mark.slow

WAVE, REQUESTS, WARM = 132, 1056, 396


def soaked() -> Soak:
    """In a process of its own: what other tests left for the collector or for MLX is not to be counted."""
    command = [sys.executable, "-m", "tests.gateway.soaking", str(REQUESTS), str(WAVE)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout)
    return Soak(Counter(told["ends"]), told["wrong"], array("q", told["figures"]), told["most_rows"])


def test_a_thousand_short_requests_leave_nothing_behind() -> None:
    found = soaked()
    assert found.wrong == []
    each = REQUESTS // len(KINDS)
    ended = {kind: sum(count for end, count in found.ends.items() if end.startswith(f"{kind}: ")) for kind in KINDS}
    assert ended == dict.fromkeys(KINDS, each)
    assert found.most_rows == ROWS
    assert found.ends["gives up: cancelled"] > each // 2
    assert found.slope("active_bytes", WARM) == 0
    assert found.slope("threads", WARM) == 0
    assert abs(found.slope("objects", WARM)) < 0.05  # a single object more for twenty requests would show
    assert all(0 < sample.entry_bytes <= PROMPT_CACHE for sample in found.samples)
