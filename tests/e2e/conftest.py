"""One JupyterLab and one browser for all browser tests, a fresh page for each."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from tests.e2e.labkit import Lab


def _need(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed (pip install mlx-notebook[test])")


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    _need("jupyterlab")
    _need("playwright")
    from tests.e2e import labkit

    with labkit.lab_server(tmp_path_factory.mktemp("root")) as running:
        yield running


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    _need("playwright")
    from playwright.sync_api import sync_playwright

    from tests.e2e import labkit

    if labkit.chromium_path() is None:
        pytest.skip(f"no browser at {' or '.join(map(str, map(pathlib.Path, labkit.CHROMIUM)))}")
    with sync_playwright() as playwright:
        running = labkit.launch(playwright)
        yield running
        running.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that must not raise: an exception in it fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(0)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert errors == []
