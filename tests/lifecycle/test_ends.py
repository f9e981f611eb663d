"""A process with a live gateway ends cleanly, however it ends: exits, forks, kernels.

Each is run a few times, since such faults come now and then; MLX_NOTEBOOK_LIFECYCLE_RUNS=50 is the full run
(`python -m benchmarks.lifecycle` does it and keeps what came out).
"""

from __future__ import annotations

import os

import pytest

from tests.lifecycle.child import EXITS, FORKS
from tests.lifecycle.running import run_child, run_kernel

pytestmark = pytest.mark.slow

RUNS = int(os.environ.get("MLX_NOTEBOOK_LIFECYCLE_RUNS", "5"))


@pytest.mark.parametrize("mode", EXITS)
def test_exit(mode: str) -> None:
    ends = [run_child(mode) for _ in range(RUNS)]
    assert [end.problems for end in ends] == [()] * RUNS


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("mode", FORKS)
def test_fork(mode: str) -> None:
    ends = [run_child(mode) for _ in range(RUNS)]
    assert [end.problems for end in ends] == [()] * RUNS


def test_kernels() -> None:
    ends = [end for _ in range(RUNS) for end in run_kernel()]
    assert [(end.what, end.problems) for end in ends if end.problems] == []
    assert len(ends) == 3 * RUNS
