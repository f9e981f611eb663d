"""What a test needs and a machine may lack: the test is skipped there, but fails where nothing may be skipped."""

from __future__ import annotations

import importlib.util
import os
from typing import NoReturn

import pytest

SKIP_NOTHING = "MLX_NOTEBOOK_SKIP_NOTHING"
"""Set to 1 (as `.ci/run` does), what is missing is a failure that names it: a proof that is skipped proves nothing."""


def lacking(what: str) -> NoReturn:
    """End the test for want of this: a sentence that says what is missing, and how to get it."""
    if os.environ.get(SKIP_NOTHING) == "1":
        pytest.fail(f"{what} ({SKIP_NOTHING}=1: nothing may be skipped)", pytrace=False)
    pytest.skip(what)


def need(module: str, install: str = "pip install mlx-notebook[test]") -> None:
    """End the test where this module is not installed."""
    if importlib.util.find_spec(module) is None:
        lacking(f"{module} is not installed ({install})")
