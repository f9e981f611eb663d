"""`%%mlxgen` with the real model in a real JupyterLab: the main job, from the magic to what stays in the file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import nbformat
import pytest

from tests.e2e import labkit

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.e2e.labkit import Lab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.usefixtures("smollm2_wheel"),
]

LOAD = "%load_ext mlx_notebook\n%mlxload smollm2"
# Long enough to be met alive; every test ends it itself.
ENDLESS = "Write a long story about a fox who learns to sail."
LONG = f"%%mlxgen --max-tokens 4000 --logit-bias $no_end --into story\n{ENDLESS}"
NO_END = "no_end = {2: -10_000}  # SmolLM2's end of turn"


def opened(page: Page, lab: Lab, name: str, *cells: str, kernel: str = "python3") -> None:
    """A notebook whose cell 0 has loaded the model."""
    labkit.write_notebook(lab.root / name, [f"{NO_END}\n{LOAD}", *cells], kernel)
    labkit.open_notebook(page, lab, name)
    labkit.run_and_wait(page, 0)
    assert "smollm2 is loaded" in labkit.output_area(page, 0).inner_text()


def live_text(page: Page, index: int) -> str:
    """What the cell's live view shows."""
    return labkit.output_area(page, index).locator(".mlx-text").inner_text()


def wait_for_text(page: Page, index: int, longer_than: int = 0) -> None:
    """Wait until the cell's live view shows more than so many characters."""
    page.wait_for_function(
        f"([i, n]) => ({labkit.PANEL}.content.widgets[i].outputArea.node.querySelector('.mlx-text')"
        "?.textContent ?? '').length > n",
        arg=[index, longer_than],
    )


def test_a_cell_streams_while_the_notebook_goes_on_and_leaves_its_text(page: Page, lab: Lab) -> None:
    rivers = "%%mlxgen --max-tokens 8 --into rivers\nName three rivers."
    opened(page, lab, "gen.ipynb", LONG, rivers, "story.cancel()\nrivers.text")
    labkit.run_and_wait(page, 1)
    wait_for_text(page, 1)
    labkit.run_and_wait(page, 2)
    # The short answer joins the long one's batch, and is over first.
    finished = labkit.wait_for_output(page, 2, "text/html")
    begun = live_text(page, 1)
    wait_for_text(page, 1, longer_than=max(200, len(begun)))
    labkit.screenshot(page, "mlxgen-live")
    begun = live_text(page, 1)
    labkit.run_and_wait(page, 3)
    cancelled = labkit.wait_for_output(page, 1, "text/html")
    assert cancelled["data"]["text/plain"].startswith(begun)
    assert cancelled["data"]["text/plain"].endswith("\n[cancelled]")
    assert labkit.outputs(page, 3)[0]["data"]["text/plain"] == repr(finished["data"]["text/plain"])
    about = finished["metadata"]["mlx_notebook"]
    assert about["model"] == "smollm2"
    assert about["options"]["max_tokens"] == 8
    assert isinstance(about["seed"], int)
    labkit.screenshot(page, "mlxgen-frozen")
    labkit.save(page)
    saved = nbformat.read(lab.root / "gen.ipynb", as_version=4)
    assert dict(saved.cells[2].outputs[0].data) == finished["data"]


def test_a_row_that_waits_for_its_place_says_so(page: Page, lab: Lab) -> None:
    one_place = LOAD.replace("smollm2", "smollm2 --batch 1 --replace")
    labkit.write_notebook(lab.root / "place.ipynb", [f"{NO_END}\n{one_place}", LONG, LONG, "%mlxcancel all"])
    labkit.open_notebook(page, lab, "place.ipynb")
    for cell in range(3):
        labkit.run_and_wait(page, cell)
    labkit.output_area(page, 2).get_by_text("waiting: ").wait_for()
    wait_for_text(page, 1)
    labkit.run_and_wait(page, 3)
    assert labkit.wait_for_output(page, 2, "text/html")["data"]["text/plain"].endswith("[cancelled]")


def test_cancel_frees_a_waiting_cell_and_the_next_one_works(page: Page, lab: Lab, kernel: str) -> None:
    short = "%%mlxgen --wait --max-tokens 4\nSay hello."
    opened(page, lab, f"wait-{kernel}.ipynb", LONG.replace("%%mlxgen", "%%mlxgen --wait"), short, kernel=kernel)
    labkit.run_cell(page, 1)
    wait_for_text(page, 1)
    page.get_by_role("button", name="Cancel", exact=True).click()
    labkit.wait_cell(page, 1)
    kinds = [output["output_type"] for output in labkit.outputs(page, 1)]
    assert kinds == ["display_data", "error"]
    assert labkit.wait_for_output(page, 1, "text/html")["data"]["text/plain"].endswith("[cancelled]")
    labkit.run_and_wait(page, 2)
    assert labkit.wait_for_output(page, 2, "text/html")["data"]["text/plain"]


def test_an_interrupt_cancels_the_waiting_cell_s_row_and_no_other(page: Page, lab: Lab) -> None:
    other = LONG.replace("--into story", "--into other")
    opened(
        page,
        lab,
        "intr.ipynb",
        LONG.replace("%%mlxgen", "%%mlxgen --wait"),
        other,
        "type(story.exception()).__name__",
        "%mlxcancel all",
    )
    labkit.run_and_wait(page, 2)
    wait_for_text(page, 2)
    labkit.run_cell(page, 1)
    wait_for_text(page, 1)
    labkit.command(page, "notebook:interrupt-kernel")
    labkit.wait_cell(page, 1)
    labkit.run_and_wait(page, 3)
    assert labkit.outputs(page, 3)[0]["data"]["text/plain"] == "'Cancelled'"
    wait_for_text(page, 2, longer_than=len(live_text(page, 2)))
    labkit.run_and_wait(page, 4)
    assert labkit.wait_for_output(page, 2, "text/html")["data"]["text/plain"].endswith("[cancelled]")


def test_a_reload_and_a_second_run_of_the_cell(page: Page, lab: Lab) -> None:
    opened(page, lab, "again.ipynb", LONG, "%mlxcancel all")
    labkit.run_and_wait(page, 1)
    wait_for_text(page, 1, longer_than=40)
    begun = live_text(page, 1)
    labkit.save(page)
    page.reload(wait_until="domcontentloaded")
    labkit.wait_ready(page)
    wait_for_text(page, 1, longer_than=len(begun))
    assert live_text(page, 1).startswith(begun)
    labkit.run_and_wait(page, 1)
    assert "of its last run cancelled" in labkit.output_area(page, 1).inner_text()
    wait_for_text(page, 1)
    assert page.locator(".mlx-stream").count() == 1
    labkit.run_and_wait(page, 2)
    page.locator(".mlx-stream").wait_for(state="detached")
