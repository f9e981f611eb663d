"""Dashboard and timeline where pages and cells come and go: tabs, Run All, closing; and what is chosen in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e import labkit
from tests.e2e.run_cells import SETUP
from tests.e2e.test_run_views import TEN, opened, text_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.e2e.labkit import Lab

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


def lines(page: Page) -> list[str]:
    """What a reader sees of each row in the dashboard."""
    return page.locator(".mlx-dash tr[data-line]").all_inner_texts()


def test_a_second_tab_shows_and_does_the_same(page: Page, lab: Lab) -> None:
    opened(page, lab, "tabs.ipynb", ["gw = scripted()\n" + TEN, "gw.dashboard()", "gw.timeline()", "gw.close()"])
    for index in (1, 2, 3):
        labkit.run_and_wait(page, index)
    page.locator("tr[data-line='10'][data-status=queued]").wait_for()
    page.locator(".mlx-timeline .mlx-num", has_text="10 requests").wait_for()
    labkit.save(page)
    other = page.context.new_page()
    labkit.open_notebook(other, lab, "tabs.ipynb")
    other.locator("tr[data-line='10'] .mlx-cancel").click()
    for one in (page, other):
        one.locator("tr[data-line='10'][data-status=cancelled]").wait_for()
        one.locator(".mlx-timeline .mlx-num", has_text="10 requests").wait_for()
    other.locator(".mlx-pause").click()
    page.locator(".mlx-dash .mlx-banner", has_text="Paused").wait_for()
    while lines(other) != lines(page):
        page.wait_for_timeout(50)
    other.close()
    page.locator(".mlx-pause", has_text="Resume").click()
    page.locator(".mlx-dash .mlx-banner", has_text="Paused").wait_for(state="hidden")
    labkit.run_and_wait(page, 4)


def test_run_all_shows_the_views_of_cells_before_one_that_blocks(page: Page, lab: Lab) -> None:
    cells = [
        "gw = scripted()\n" + TEN,
        "gw.dashboard()",
        "gw.timeline()",
        "while hs[9].status != 'cancelled': time.sleep(0.05)\nprint('heard')",
    ]
    labkit.write_notebook(lab.root / "all.ipynb", [SETUP, *cells])
    page.set_viewport_size({"width": 1280, "height": 1400})
    labkit.open_notebook(page, lab, "all.ipynb")
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
    page.locator(".mlx-timeline .mlx-num", has_text="10 requests").wait_for()
    page.locator("tr[data-line='10'][data-status=queued] .mlx-cancel").click()
    labkit.wait_cell(page, 4)
    assert "heard" in text_of(page, 4)


def pause(page: Page) -> None:
    page.locator(".mlx-dash .mlx-pause").click()
    page.locator(".mlx-dash .mlx-banner", has_text="Paused").wait_for()


def test_closing_the_dashboard_or_its_page_lets_a_paused_scheduler_go_on(page: Page, lab: Lab) -> None:
    goes_on = "while gw.paused: time.sleep(0.02)\nprint('goes on')"
    cells = ["gw = scripted()\n" + TEN, "gw.dashboard()", goes_on, "gw.dashboard()", goes_on, "gw.close()"]
    opened(page, lab, "closing.ipynb", cells)
    labkit.run_and_wait(page, 1)
    labkit.run_and_wait(page, 2)
    pause(page)
    page.evaluate(f"() => {{ {labkit.PANEL}.content.activeCellIndex = 2; }}")
    labkit.command(page, "notebook:clear-cell-output")
    labkit.run_and_wait(page, 3)
    assert "goes on" in text_of(page, 3)
    labkit.run_and_wait(page, 4)
    pause(page)
    page.goto("about:blank")
    labkit.open_notebook(page, lab, "closing.ipynb")
    labkit.run_and_wait(page, 5)
    assert "goes on" in text_of(page, 5)
    labkit.run_and_wait(page, 6)


FOUR = """\
gw = scripted(step_s=0.002)
hs = [gw.submit("tide %d" % i, raw=True, max_tokens=9) for i in range(4)]
gw.wait_idle()
dash, time_, said = gw.dashboard(), gw.timeline(), gw.stream(hs)
"""


def test_what_is_chosen_in_a_view_is_chosen_in_python_and_the_other_way_round(page: Page, lab: Lab) -> None:
    cells = [
        FOUR,
        "dash",
        "time_",
        "said",
        "print(dash.selected, time_.selected, time_.brush, said.selected)",
        "dash.selected, time_.selected, time_.brush, said.selected = [3], [4, 1], [2, 5], [1]",
        "gw.close()",
    ]
    opened(page, lab, "chosen.ipynb", cells)
    page.set_viewport_size({"width": 1280, "height": 2600})
    for index in (1, 2, 3, 4):
        labkit.run_and_wait(page, index)
    page.locator(".mlx-dash tr[data-line='2'] .mlx-pick").click()
    page.locator(".mlx-timeline summary").click()
    page.locator(".mlx-timeline tr[data-line='3'] .mlx-pick").click()
    page.locator(".mlx-timeline canvas").focus()
    page.keyboard.press("End")
    page.keyboard.press("Shift+ArrowLeft")
    page.locator(".mlx-timeline .mlx-clear:not([hidden])").wait_for()
    page.locator(".mlx-stream .mlx-row .mlx-prompt").nth(3).click()
    page.locator(".mlx-stream .mlx-row[aria-selected=true]").wait_for()
    labkit.run_and_wait(page, 5)
    last = page.evaluate("() => document.querySelector('.mlx-timeline .mlx-readout').textContent")
    assert text_of(page, 5).strip().startswith("[2] [3] ["), last
    assert text_of(page, 5).strip().endswith("] [4]")
    labkit.run_and_wait(page, 6)
    page.locator(".mlx-dash tr[data-line='3'][aria-selected=true]").wait_for()
    page.locator(".mlx-stream .mlx-row[data-line='1'][aria-selected=true]").wait_for()
    page.locator(".mlx-timeline .mlx-panel[data-line='4'] .mlx-tokens .mlx-brushed").first.wait_for()
    page.locator(".mlx-timeline .mlx-panel[data-line='1']").wait_for()
    labkit.run_and_wait(page, 7)
