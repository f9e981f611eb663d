"""A thousand short requests, sixty-four at a time, leave nothing behind; `benchmarks.soak` is the full run."""

from __future__ import annotations

import pytest

from tests.gateway.soaking import KINDS, PROMPT_CACHE, ROWS, soak

pytestmark = pytest.mark.slow

WAVE, REQUESTS, WARM = 132, 1056, 396


def test_a_thousand_short_requests_leave_nothing_behind() -> None:
    found = soak(REQUESTS, WAVE)
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
