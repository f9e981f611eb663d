"""A proof that cannot be given is skipped on a user's machine, and named as a failure where nothing may be skipped."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from tests.e2e import conftest as browser_fixtures
from tests.e2e import labkit
from tests.needing import SKIP_NOTHING, lacking, need

if TYPE_CHECKING:
    from collections.abc import Callable

Skipped, Failed = pytest.skip.Exception, pytest.fail.Exception


@pytest.mark.parametrize(("value", "outcome"), [(None, Skipped), ("", Skipped), ("0", Skipped), ("1", Failed)])
def test_what_is_missing_is_named_either_way(
    value: str | None, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SKIP_NOTHING, raising=False)
    if value is not None:
        monkeypatch.setenv(SKIP_NOTHING, value)
    need("pytest")
    with pytest.raises(outcome, match="no browser"):
        lacking("there is no browser")
    with pytest.raises(outcome, match=r"no_such_module is not installed \(pip install it\)"):
        need("no_such_module", "pip install it")


def no_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labkit, "chromium_path", lambda: None)
    browser_fixtures.browser_or_end()


def no_older_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = SimpleNamespace(returncode=1, stderr="no network")
    monkeypatch.setattr(subprocess, "run", lambda *_a, **_k: failed)
    browser_fixtures.install_older_kernel("anywhere")


@pytest.mark.parametrize(("meet", "named"), [(no_browser, "chromium"), (no_older_kernel, r"7\.3\.0.*no network")])
@pytest.mark.parametrize(("value", "outcome"), [("", Skipped), ("1", Failed)])
def test_the_browser_tests_end_so_for_want_of_a_browser_or_of_the_older_kernel(
    meet: Callable[[pytest.MonkeyPatch], None],
    named: str,
    value: str,
    outcome: type[BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SKIP_NOTHING, value)
    with pytest.raises(outcome, match=named):
        meet(monkeypatch)
