"""The wired limit goes up with the first backend and back with the last, in whatever order they close."""

from __future__ import annotations

import mlx.core as mx
import pytest

from mlx_notebook.engine import wired


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An Apple GPU that recommends 1000 bytes, with 10 in force; gives the limits that were set."""
    limits = [10]

    def set_limit(value: int) -> int:
        limits.append(value)
        return limits[-2]

    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": 1000})
    monkeypatch.setattr(mx, "set_wired_limit", set_limit)
    return limits


def test_two_backends_raise_it_once_and_the_last_restores_it(calls: list[int]) -> None:
    wired.hold()
    wired.hold()
    wired.release()
    assert calls == [10, 1000]
    wired.release()
    assert calls == [10, 1000, 10]
    wired.hold()
    wired.release()
    assert calls == [10, 1000, 10, 1000, 10]


def test_elsewhere_nothing_is_set(calls: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    wired.hold()
    wired.release()
    assert calls == [10]
