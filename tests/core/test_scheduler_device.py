"""The device: asked for, waited for behind others, given back, lost."""

from __future__ import annotations

from mlx_notebook.core import events as ev
from tests.core.driving import (
    Drive,
    chunk,
    last_token,
)

BOOM = ("ValueError: boom", "Traceback ...")


def test_it_is_asked_for_once_whatever_the_number_of_rows() -> None:
    drive = Drive()
    assert drive.submit(1) == [ev.AskLease()]
    assert drive.submit(2) == []
    assert drive.turn() == []


def test_a_grant_that_nobody_needs_any_more_is_given_back() -> None:
    drive = Drive()
    assert drive.grant() == [ev.GiveLease()]


def test_rows_before_a_waiter_go_on_and_rows_after_it_wait_for_it() -> None:
    drive = Drive()
    drive.submit(1)
    drive.submit(2)
    drive.grant()
    drive.until_decode(1)
    drive.feed(ev.LeaseWanted(0))
    drive.submit(3)
    drive.stepped(last_token(1))
    assert drive.turn()[0] == ev.Open(2)
    drive.prefilled(chunk(2, 0, 3, last=True))
    drive.stepped(last_token(2))
    assert drive.turn() == [ev.GiveLease(), ev.AskLease()]
    assert drive.turn() == []
    drive.grant()
    assert drive.turn()[0] == ev.Open(3)


def test_a_later_row_of_high_priority_does_not_pass_the_waiter() -> None:
    drive = Drive()
    drive.submit(1)
    drive.grant()
    drive.feed(ev.LeaseWanted(0))
    drive.submit(2, priority=100)
    assert drive.turn()[0] == ev.Open(1)


def test_a_waiter_that_gave_up_holds_nobody_back() -> None:
    drive = Drive()
    drive.decode_row(1)
    drive.feed(ev.LeaseWanted(0))
    drive.submit(2)
    drive.feed(ev.LeaseUnwanted(0))
    drive.stepped(last_token(1))
    assert drive.turn()[0] == ev.Open(2)


def test_each_place_in_the_line_serves_the_rows_before_its_own_waiter() -> None:
    drive = Drive()
    drive.submit(1)
    drive.grant(place=1)
    drive.until_decode(1)
    drive.feed(ev.LeaseWanted(0, place=1))
    drive.submit(2)  # goes on place 2, which stands behind that waiter
    drive.feed(ev.LeaseWanted(0, place=2))
    drive.submit(3)
    drive.stepped(last_token(1))
    assert drive.turn() == [ev.GiveLease(), ev.AskLease()]
    drive.grant(place=2)
    assert drive.turn()[0] == ev.Open(2)
    drive.prefilled(chunk(2, 0, 3, last=True))
    drive.stepped(last_token(2))
    assert drive.turn() == [ev.GiveLease(), ev.AskLease()]
    drive.grant(place=3)
    assert drive.turn()[0] == ev.Open(3)


def test_a_lost_lease_is_asked_for_again_and_the_row_goes_on() -> None:
    drive = Drive()
    drive.decode_row(1)
    assert drive.feed(ev.LeaseLost(0)) == [ev.AskLease()]
    assert drive.turn() == []
    drive.grant()
    assert drive.turn() == [ev.Decode((1,))]


def test_waiting_for_the_device_counts_from_when_it_was_not_ours() -> None:
    drive = Drive()
    drive.decode_row(1)
    drive.submit(2)
    assert drive.scheduler.rows[2].lease_wanted_ns == 0  # it waits behind our own row
    drive.feed(ev.LeaseWanted(0))
    drive.submit(3)
    drive.cancel(2)
    drive.stepped(last_token(1))
    drive.turn()
    assert drive.scheduler.rows[3].lease_wanted_ns == drive.now_ns
