"""The prompts of a burst are read before the first of its rows writes: then all write in full steps."""

from __future__ import annotations

from mlx_notebook.core import events as ev
from mlx_notebook.core.placement import Mechanism
from mlx_notebook.core.scheduler import OPENING_NS
from tests.core.driving import Drive, chunk, scheduler, token


def burst(*prompts: int) -> Drive:
    """Rows 1, 2, ... with prompts of so many tokens, submitted together; each prompt is read by itself, 4 at a time."""
    drive = Drive(scheduler(max_rows=len(prompts)), Mechanism.CONTINUOUS)
    for row_id, prompt in enumerate(prompts, 1):
        drive.submit(row_id, prompt)
    drive.grant()
    return drive


def read_first(drive: Drive) -> None:
    """Row 1's prompt is read; nothing else happened yet."""
    *_, first = drive.turn()
    assert first == chunk(1, 0, 3, last=True)
    drive.prefilled(first)


def test_short_prompts_are_read_before_anybody_writes() -> None:
    drive = burst(3, 3, 3)
    read_first(drive)
    for row_id in (2, 3):
        assert drive.turn() == [chunk(row_id, 0, 3, last=True)]
        drive.prefilled(chunk(row_id, 0, 3, last=True))
    assert drive.turn() == [ev.Decode((1, 2, 3))]


def test_a_long_prompt_is_not_waited_for() -> None:
    drive = burst(3, 12)
    read_first(drive)
    assert drive.turn() == [chunk(2, 0, 4, last=False), ev.Decode((1,))]


def test_a_row_that_has_written_waits_for_nobody() -> None:
    drive = burst(3, 3)
    drive.cancel(2)
    read_first(drive)
    assert drive.turn() == [ev.Decode((1,))]
    drive.stepped(token(1))
    drive.submit(3)
    assert drive.turn() == [ev.Open(3), chunk(3, 0, 3, last=True), ev.Decode((1,))]


def test_nor_does_any_wait_for_long() -> None:
    drive = burst(3, 3, 3)
    read_first(drive)
    drive.prefilled(drive.turn()[-1])  # type: ignore[arg-type]
    drive.now_ns += OPENING_NS
    assert drive.turn() == [chunk(3, 0, 3, last=True), ev.Decode((1, 2))]
