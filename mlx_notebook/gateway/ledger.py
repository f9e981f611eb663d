"""The memory ledger: one a process, shared by all gateways. Who may hold how much for rows and kept prefixes.

A gateway with a fixed `kv_budget` gets it. The others share, in equal parts, most of what is free
once the weights are in. Whenever a gateway comes or goes the shares are reckoned again and each
gateway is told; running rows are never evicted for it, kept prefixes are.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SHARE = 0.8
"""Of the free memory; the rest is for activations and for what else runs here."""


@dataclass(frozen=True, slots=True)
class Account:
    """One gateway's line: its fixed budget or None, what it holds now, and how to tell it of a new budget."""

    fixed: int | None
    held: Callable[[], int]
    tell: Callable[[int], None]


class Ledger:
    """Budgets of all gateways of the process. Any thread may call; `tell` is called outside the lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._accounts: dict[object, Account] = {}

    def join(self, key: object, account: Account, free_bytes: int) -> int:
        """Open an account when a model is loaded; its budget. `free_bytes` is what is free now."""
        with self._lock:
            self._accounts[key] = account
            budgets = self._budgets(free_bytes)
        self._tell(budgets, but=key)
        return account.fixed if account.fixed is not None else budgets[key]

    def leave(self, key: object, free_bytes: int) -> None:
        """Close an account; the others share again. Idempotent."""
        with self._lock:
            if self._accounts.pop(key, None) is None:
                return
            budgets = self._budgets(free_bytes)
        self._tell(budgets, but=None)

    def _budgets(self, free_bytes: int) -> dict[object, int]:
        """Of the sharing accounts; what they hold already is theirs to reckon with, so it counts as free."""
        sharing = {key: account for key, account in self._accounts.items() if account.fixed is None}
        fixed = sum(a.fixed - min(a.fixed, a.held()) for a in self._accounts.values() if a.fixed is not None)
        pool = int(SHARE * (free_bytes + sum(account.held() for account in sharing.values()))) - fixed
        return {key: max(0, pool // len(sharing)) for key in sharing}

    def _tell(self, budgets: dict[object, int], but: object) -> None:
        for key, nbytes in budgets.items():
            account = self._accounts.get(key)
            if key != but and account is not None:
                account.tell(nbytes)

    def forget_after_fork(self) -> None:
        """In a forked child: no gateway is here."""
        self._lock = threading.Lock()
        self._accounts = {}


ledger = Ledger()
