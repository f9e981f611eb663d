"""Byte arguments, as numbers and as texts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlx_notebook.gateway.sizes import parse_bytes, show_bytes


@pytest.mark.parametrize(
    ("value", "count"),
    [
        (512, 512),
        ("512", 512),
        ("4GB", 4 * 10**9),
        ("1.5 GiB", 3 * 2**29),
        (" 2kb ", 2000),
        (".5 MB", 500_000),
        (4e9, 4 * 10**9),
        (1e17, 10**17),
        (np.int64(7), 7),
        (np.float64(8.9), 8),
        (0, 0),
    ],
)
def test_forms(value: object, count: int) -> None:
    assert parse_bytes("kv_budget", value) == count


@pytest.mark.parametrize("value", [True, None, [1], b"4GB", 1j])
def test_wrong_kinds(value: object) -> None:
    with pytest.raises(TypeError, match=r"kv_budget.*number of bytes or a text such as '4GB'"):
        parse_bytes("kv_budget", value)


@pytest.mark.parametrize(
    "value", ["", "GB", "4 XB", "-1GB", "4,5GB", "1e9", "٤GB", -1, float("nan"), float("inf"), 10**30, "9" * 400 + "TB"]
)
def test_wrong_values(value: object) -> None:
    with pytest.raises(ValueError, match="kv_budget="):
        parse_bytes("kv_budget", value)


@given(st.integers(0, 2**62))
def test_numbers_pass_as_they_are(count: int) -> None:
    assert parse_bytes("x", count) == count


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (1_300_000_000, "1.3 GB"), (10**16, "10000.0 TB")]
)
def test_for_people(count: int, text: str) -> None:
    assert show_bytes(count) == text
