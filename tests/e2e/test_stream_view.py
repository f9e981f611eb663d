"""The live view in a real JupyterLab, as a reader sees it. Rows are fakes; the page, kernel and widget are real."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e import labkit
from tests.e2e.cells import SETUP

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.e2e.labkit import Lab

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

GROWS = "(before) => (document.querySelector('.mlx-text')?.textContent ?? '').length > before"
ENDLESS = "row = FakeRow().talk(counting(), 0.02); view = show(row)"


def opened(page: Page, lab: Lab, name: str, *cells: str) -> None:
    """A notebook with the setup as cell 0, run, and these cells after it."""
    labkit.write_notebook(lab.root / name, [SETUP, *cells])
    labkit.open_notebook(page, lab, name)
    labkit.run_and_wait(page, 0)


def texts(page: Page) -> list[str]:
    return page.locator(".mlx-text").all_inner_texts()


def seen(page: Page, index: int, selector: str) -> str:
    """The text of what a cell shows, scrolled to: JupyterLab draws an output when it comes into view."""
    text: str = page.wait_for_function(
        f"""([i, selector]) => {{
            const notebook = {labkit.PANEL}.content;
            const found = notebook.widgets[i].outputArea.node.querySelector(selector);
            if (!found) notebook.scrollToItem(i, 'center');
            return found?.textContent;
        }}""",
        arg=[index, selector],
        polling=100,
    ).json_value()
    return text


def test_text_appears_while_the_row_runs_and_freezes_into_plain_html(page: Page, lab: Lab) -> None:
    opened(
        page,
        lab,
        "live.ipynb",
        "row = FakeRow('Say <i>hello</i>'); view = show(row)",
        "row.say('<img src=x onerror=window.hacked=1>')",
        "row.say(' <script>window.hacked=2</script>\\n  second line')",
        "row.finish()",
        "view.widget.comm is None",
    )
    labkit.run_and_wait(page, 1)
    page.locator(".mlx-row[data-status=queued]").wait_for()
    labkit.run_and_wait(page, 2)
    page.wait_for_function(GROWS, arg=0)
    assert texts(page) == ["<img src=x onerror=window.hacked=1>"]
    labkit.run_and_wait(page, 3)
    page.wait_for_function(GROWS, arg=40)
    whole = "<img src=x onerror=window.hacked=1> <script>window.hacked=2</script>\n  second line"
    assert texts(page) == [whole]
    labkit.run_and_wait(page, 4)
    frozen = labkit.wait_for_output(page, 1, "text/html")
    assert frozen["data"]["text/plain"] == whole
    assert "<img" not in frozen["data"]["text/html"]
    assert "<script" not in frozen["data"]["text/html"]
    assert frozen["metadata"]["mlx_notebook"] == {"model": "smollm2", "seed": 7}
    page.locator(".mlx-stream").wait_for(state="detached")
    labkit.run_and_wait(page, 5)
    assert labkit.outputs(page, 5)[0]["data"]["text/plain"] == "True"
    assert labkit.output_area(page, 1).locator("pre").inner_text() == whole
    assert page.evaluate("window.hacked") is None


def test_cancel_ends_the_row_and_says_so(page: Page, lab: Lab) -> None:
    opened(page, lab, "cancel.ipynb", ENDLESS)
    labkit.run_and_wait(page, 1)
    page.wait_for_function(GROWS, arg=0)
    page.get_by_role("button", name="Cancel", exact=True).click()
    frozen = labkit.wait_for_output(page, 1, "text/html")
    assert frozen["data"]["text/plain"].endswith("\n[cancelled]")
    assert "cancelled" in labkit.output_area(page, 1).inner_text()


def test_keys_in_a_focused_view_never_reach_the_notebook(page: Page, lab: Lab) -> None:
    opened(page, lab, "keys.ipynb", ENDLESS, "row.finish()", "'a cell to lose'")
    labkit.run_and_wait(page, 1)
    page.wait_for_function(GROWS, arg=0)
    before = labkit.cell_count(page)
    for name in ("Copy", "Cancel"):
        page.get_by_role("button", name=name, exact=True).focus()
        page.keyboard.press("d")
        page.keyboard.press("d")
        page.keyboard.press("b")
        page.keyboard.press("x")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.textContent") == "Copy"
    # The same two keys do delete a cell where the notebook has the focus: the test can fail.
    assert labkit.cell_count(page) == before
    page.evaluate(
        f"() => {{ const n = {labkit.PANEL}.content; n.activeCellIndex = 3; n.mode = 'command'; n.node.focus(); }}"
    )
    page.locator(labkit.SHOWN).nth(3).locator(".jp-InputPrompt").click()
    page.keyboard.press("d")
    page.keyboard.press("d")
    page.wait_for_function(f"(n) => {labkit.PANEL}.content.widgets.length === n", arg=before - 1)


def test_the_view_has_one_tab_stop_and_survives_the_end_of_its_focused_button(page: Page, lab: Lab) -> None:
    opened(page, lab, "tab.ipynb", "row = FakeRow(); row.say('hello'); view = show(row, keep=True)", "row.finish()")
    labkit.run_and_wait(page, 1)
    page.wait_for_function(GROWS, arg=0)
    assert page.locator(".mlx-stream [tabindex='0']").count() == 1
    page.get_by_role("button", name="Cancel", exact=True).focus()
    # The button goes when the row ends; a focus that fell off would hand the keys to the notebook.
    page.evaluate(f"() => {labkit.PANEL}.sessionContext.session.kernel.requestExecute({{code: 'row.finish()'}}).done")
    page.locator(".mlx-row[data-status=finished]").wait_for()
    page.wait_for_function("() => document.activeElement.textContent === 'Copy'")
    assert page.locator(".mlx-stream [tabindex='0']").count() == 1


def test_copy_gives_the_text(page: Page, lab: Lab) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened(page, lab, "copy.ipynb", "row = FakeRow(); row.say('a < b\\n & c'); view = show(row, keep=True)")
    labkit.run_and_wait(page, 1)
    page.wait_for_function(GROWS, arg=0)
    page.get_by_role("button", name="Copy", exact=True).click()
    page.get_by_role("button", name="Copied", exact=True).wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == "a < b\n & c"


def test_a_selection_holds_the_freeze(page: Page, lab: Lab) -> None:
    opened(
        page,
        lab,
        "select.ipynb",
        "row = FakeRow(); row.say('hello'); view = show(row)",
        "row.say(' there'); row.finish()",
    )
    labkit.run_and_wait(page, 1)
    page.wait_for_function(GROWS, arg=0)
    page.evaluate(
        "() => { const text = document.querySelector('.mlx-text').firstChild;"
        " document.getSelection().setBaseAndExtent(text, 0, text, 5); }"
    )
    page.wait_for_function("() => !document.getSelection().isCollapsed")
    labkit.run_and_wait(page, 2)
    page.locator(".mlx-row[data-status=finished]").wait_for()
    assert "application/vnd.jupyter.widget-view+json" in labkit.outputs(page, 1)[0]["data"]
    assert page.evaluate("document.getSelection().toString()") == "hello"
    page.evaluate("() => document.getSelection().removeAllRanges()")
    assert labkit.wait_for_output(page, 1, "text/html")["data"]["text/plain"] == "hello there"


def test_a_reload_during_a_run_brings_the_text_back_and_it_goes_on(page: Page, lab: Lab) -> None:
    opened(page, lab, "reload.ipynb", ENDLESS, "row.cancel()")
    labkit.run_and_wait(page, 1)
    page.wait_for_function(GROWS, arg=50)
    labkit.save(page)
    page.reload(wait_until="domcontentloaded")
    labkit.wait_ready(page)
    page.wait_for_function(GROWS, arg=50)
    page.wait_for_function(GROWS, arg=len(texts(page)[0]) + 50)
    words = texts(page)[0].split()
    assert words == [f"token{i}" for i in range(len(words))]
    labkit.run_and_wait(page, 2)
    # The page knows this output from the file, so no update of the display reaches it: the view must stay.
    page.locator(".mlx-row[data-status=cancelled]").wait_for()
    assert texts(page)[0].split()[: len(words)] == words


def test_a_reload_after_a_run_shows_the_text(page: Page, lab: Lab) -> None:
    opened(page, lab, "after.ipynb", "row = FakeRow(); row.say('a short answer'); row.finish(); view = show(row)")
    labkit.run_and_wait(page, 1)
    labkit.wait_for_output(page, 1, "text/html")
    labkit.save(page)
    page.reload(wait_until="domcontentloaded")
    labkit.wait_ready(page)
    assert labkit.output_area(page, 1).inner_text().strip() == "a short answer"


def test_sixty_live_cells_lose_nothing(page: Page, lab: Lab) -> None:
    cells = [
        f"rows.append(FakeRow().talk((f'{i}.{{n}} ' for n in range(150)), 0.01)); show(rows[-1], keep={i % 2 == 0});"
        for i in range(60)
    ]
    opened(page, lab, "sixty.ipynb", "rows = []", *cells)
    labkit.command(page, "notebook:run-all-cells")
    labkit.wait_cell(page, 61)
    for i in range(60):
        kind = "pre" if i % 2 else ".mlx-row[data-status=finished] .mlx-text"
        assert seen(page, i + 2, kind).strip() == " ".join(f"{i}.{n}" for n in range(150))


def test_after_a_restart_the_view_says_that_nothing_more_comes(page: Page, lab: Lab) -> None:
    opened(page, lab, "restart.ipynb", "row = FakeRow(); row.say('half an ans'); view = show(row)")
    labkit.run_and_wait(page, 1)
    page.wait_for_function(GROWS, arg=0)
    page.evaluate(f"() => {labkit.PANEL}.sessionContext.session.kernel.restart()")
    page.get_by_text("The kernel is gone or was restarted.").first.wait_for()
    assert texts(page) == ["half an ans"]
    page.get_by_role("button", name="Cancel", exact=True).wait_for(state="hidden")
