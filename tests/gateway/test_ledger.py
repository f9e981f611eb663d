"""The memory ledger: equal shares of what is free, fixed budgets first, everybody told when one comes or goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from mlx_notebook.core.placement import Capabilities
from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.errors import RowFailed
from mlx_notebook.gateway import ledger as ledgers
from mlx_notebook.gateway import thread
from mlx_notebook.gateway.ledger import SHARE, Account, Ledger
from tests.gateway.fakes import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.gateway.gateway import Gateway

    Make = Callable[..., Gateway]


@dataclass
class Owner:
    """A gateway as the ledger sees it."""

    fixed: int | None = None
    holds: int = 0
    told: list[int] = field(default_factory=list)

    @property
    def account(self) -> Account:
        return Account(self.fixed, lambda: self.holds, self.told.append)


def joined(book: Ledger, owner: Owner, free: int) -> int:
    return book.join(id(owner), owner.account, free)


def test_one_alone_gets_most_of_what_is_free() -> None:
    assert joined(Ledger(), Owner(), 1000) == int(SHARE * 1000)


def test_those_who_share_get_equal_parts_and_the_others_are_told() -> None:
    book = Ledger()
    first, second, third = Owner(), Owner(), Owner()
    joined(book, first, 1000)
    assert joined(book, second, 1000) == 400
    assert joined(book, third, 900) == 240
    assert (first.told, second.told, third.told) == ([400, 240], [240], [])


def test_a_fixed_budget_is_what_it_says_and_comes_off_first() -> None:
    book = Ledger()
    fixed, sharing = Owner(fixed=300), Owner()
    assert joined(book, fixed, 1000) == 300
    assert joined(book, sharing, 1000) == 500
    assert joined(book, Owner(fixed=5000), 10) == 5000  # the user's word, whatever is free
    assert fixed.told == []


def test_what_sharers_hold_counts_as_free() -> None:
    book = Ledger()
    full, new = Owner(holds=500), Owner()
    joined(book, full, 1000)
    assert joined(book, new, 500) == 400  # of 1000, half of which one of them uses already
    assert full.told == [400]


def test_what_a_fixed_one_holds_is_no_longer_to_be_kept_for_it() -> None:
    book = Ledger()
    joined(book, Owner(fixed=300, holds=200), 1000)
    assert joined(book, Owner(), 1000) == 700
    book = Ledger()
    joined(book, Owner(fixed=300, holds=900), 1000)
    assert joined(book, Owner(), 1000) == 800


def test_whoever_leaves_leaves_its_share_to_the_others() -> None:
    book = Ledger()
    owners = [Owner(), Owner(), Owner(fixed=100)]
    for owner in owners:
        joined(book, owner, 1000)
    first, second, fixed = owners
    second.told.clear()
    book.leave(id(first), 1000)
    assert second.told == [700]
    book.leave(id(fixed), 1000)
    assert second.told == [700, 800]
    before = [list(owner.told) for owner in owners]
    book.leave(id(first), 1000)  # again: it has no share any more
    book.leave(id(second), 1000)
    assert [owner.told for owner in owners] == before


@pytest.mark.parametrize("free", [0, 100])
def test_no_share_is_less_than_nothing(free: int) -> None:
    book = Ledger()
    sharing = Owner()
    joined(book, sharing, free)
    joined(book, Owner(fixed=10_000), free)
    assert sharing.told == [0]
    assert joined(book, Owner(), free) == 0


def test_telling_may_ask_the_ledger() -> None:
    book = Ledger()
    told: list[int] = []

    def tell(nbytes: int) -> None:
        told.append(nbytes)
        book.leave("nobody", 0)  # takes its lock

    book.join("first", Account(None, lambda: 0, tell), 1000)
    book.join("second", Owner().account, 1000)
    assert told == [400]


def test_a_forked_child_has_no_gateways() -> None:
    book = Ledger()
    joined(book, Owner(fixed=900), 1000)
    book.forget_after_fork()
    assert joined(book, Owner(), 1000) == 800


# ---------------------------------------------------------------- gateways

FREE = 100_000
CAN = Capabilities(vocab_size=0x110000, context_length=4096, continuous=True, kv_bytes_per_token=10)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with FREE bytes, whose only gateways are the test's."""
    monkeypatch.setattr(thread.Engine, "free_bytes", lambda _engine: FREE)
    book = Ledger()
    monkeypatch.setattr("mlx_notebook.gateway.tuning.ledger", book)
    monkeypatch.setattr(ledgers, "ledger", book)


def budget(gateway: Gateway) -> int:
    return gateway.stats().kv_budget_bytes


@pytest.mark.usefixtures("machine")
def test_two_gateways_share_and_the_one_that_stays_gets_it_back(gateway_of: Make) -> None:
    first = gateway_of(ScriptedBackend(capabilities=CAN))
    assert budget(first) == 80_000
    second = gateway_of(ScriptedBackend(capabilities=CAN))
    assert budget(second) == 40_000
    wait_for(lambda: budget(first) == 40_000)
    fixed = gateway_of(ScriptedBackend(capabilities=CAN), kv_budget=20_000)
    assert budget(fixed) == 20_000
    wait_for(lambda: budget(first) == budget(second) == 30_000)
    second.close()
    wait_for(lambda: budget(first) == 60_000)
    fixed.close()
    wait_for(lambda: budget(first) == 80_000)


@pytest.mark.usefixtures("machine")
def test_a_request_that_fitted_before_the_second_came_says_that_it_does_not(gateway_of: Make) -> None:
    first = gateway_of(ScriptedBackend(capabilities=CAN))
    first.pause()
    large = first.submit([5] * 10, max_tokens=4086)  # 40,960 bytes, with its columns in blocks
    small_one = first.submit([5] * 10, max_tokens=2)
    gateway_of(ScriptedBackend(capabilities=CAN))
    wait_for(lambda: budget(first) == 40_000)
    first.resume()
    error = large.exception()
    assert isinstance(error, RowFailed)
    assert "OverBudget" in str(error)
    assert "40,960" in str(error)
    assert "40,000" in str(error)
    assert small_one.result().generated_tokens == 2
