"""A cell that blocks: Cancel reaches it where the front end has subshells, the interrupt everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e import labkit
from tests.e2e.cells import SETUP
from tests.e2e.conftest import OLDER_KERNEL

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.e2e.labkit import Lab

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

VERSION = "import ipykernel; print(ipykernel.__version__)"
BLOCK = """\
row = FakeRow().talk(counting(), 0.02); view = show(row)
try:
    print("the page cancelled" if row.cancelled.wait() else "nobody did")
except KeyboardInterrupt:
    row.cancel()
    print("interrupted")
"""
ENDLESS = "import os, time; row = FakeRow().talk(counting(), 0.02); view = show(row)\n"
GROWS = "() => (document.querySelector('.mlx-text')?.textContent ?? '').length > 0"


def test_cancel_works_while_the_cell_blocks(page: Page, lab: Lab, kernel: str) -> None:
    name = f"blocking-{kernel}.ipynb"
    labkit.write_notebook(lab.root / name, [SETUP, VERSION, BLOCK], kernel)
    labkit.open_notebook(page, lab, name)
    labkit.run_and_wait(page, 0)
    labkit.run_and_wait(page, 1)
    version = labkit.output_area(page, 1).inner_text().strip()
    if kernel == "ipykernel-7-3":
        assert version == OLDER_KERNEL
    else:  # the other side of the change that the two kernels stand for
        assert tuple(map(int, version.split(".")[:2])) >= (7, 4), version
    labkit.run_cell(page, 2)
    page.wait_for_function(GROWS)
    page.get_by_role("button", name="Cancel", exact=True).click()
    labkit.wait_cell(page, 2)
    assert labkit.outputs(page, 2)[-1]["text"] == "the page cancelled\n"
    assert labkit.wait_for_output(page, 2, "text/html")["data"]["text/plain"].endswith("[cancelled]")


def test_an_interrupt_frees_the_cell(page: Page, lab: Lab) -> None:
    labkit.write_notebook(lab.root / "interrupt.ipynb", [SETUP, BLOCK])
    labkit.open_notebook(page, lab, "interrupt.ipynb")
    labkit.run_and_wait(page, 0)
    labkit.run_cell(page, 1)
    page.wait_for_function(GROWS)
    labkit.command(page, "notebook:interrupt-kernel")
    labkit.wait_cell(page, 1)
    assert labkit.outputs(page, 1)[-1]["text"] == "interrupted\n"


def test_a_reload_during_a_blocking_cell_shows_the_text_once_it_ends(page: Page, lab: Lab) -> None:
    # JupyterLab's own start asks the kernel questions on the main shell: the view comes back when that is free.
    block = ENDLESS + "while not os.path.exists('stop'): time.sleep(0.05)"
    labkit.write_notebook(lab.root / "blocked.ipynb", [SETUP, block])
    labkit.open_notebook(page, lab, "blocked.ipynb")
    labkit.run_and_wait(page, 0)
    labkit.run_cell(page, 1)
    page.wait_for_function(GROWS)
    labkit.save(page)
    page.reload(wait_until="domcontentloaded")
    labkit.wait_open(page)
    (lab.root / "stop").touch()
    page.wait_for_function(GROWS)


def test_without_subshells_the_button_says_what_to_do(page: Page, tmp_path_factory: pytest.TempPathFactory) -> None:
    settings = {"@jupyterlab/apputils-extension:kernels-settings": {"commsOverSubshells": "disabled"}}
    with labkit.lab_server(tmp_path_factory.mktemp("nosubshell"), settings=settings) as lab:
        labkit.write_notebook(lab.root / "busy.ipynb", [SETUP, ENDLESS, "threading.Event().wait()"])
        labkit.open_notebook(page, lab, "busy.ipynb")
        labkit.run_and_wait(page, 0)
        labkit.run_and_wait(page, 1)
        page.wait_for_function(GROWS)
        labkit.run_cell(page, 2)
        page.get_by_role("button", name="Cancel", exact=True).click()
        page.get_by_role("button", name="No answer: use ■ (interrupt)", exact=True).wait_for()
        labkit.screenshot(page, "cancel-without-an-answer")
        labkit.command(page, "notebook:interrupt-kernel")
        # The message waited; with the shell free again it does what it said.
        assert labkit.wait_for_output(page, 1, "text/html")["data"]["text/plain"].endswith("[cancelled]")
