"""What is known of the page, and that an interrupted wait for it keeps nobody from telling."""

from __future__ import annotations

import sys

import pytest

from mlx_notebook.notebook import frontend
from tests.gateway.fakes import in_thread
from tests.gateway.interrupting import at_every_point


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the points are those of CPython 3.11's instructions")
def test_wherever_an_interrupt_lands_in_the_wait_a_page_can_still_say_hello() -> None:
    made: list[frontend._Page] = []

    def wait() -> None:
        made.append(frontend._Page())
        made[-1].heard.wait(0.001)

    for where in at_every_point(wait):
        if made:
            in_thread(made[-1].said_hello).result()
            assert made[-1].heard.is_set(), where
    assert len(made) > 5
