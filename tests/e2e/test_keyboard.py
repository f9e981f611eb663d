"""Everything in the three views by keyboard alone: one tab stop each, arrow keys inside, Enter or space to act.

`test_run_views.py` has that keys stay in the view; here is what they can do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e import labkit
from tests.e2e.test_run_views import TEN, opened, text_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.e2e.labkit import Lab

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

NAME = """() => {
    const at = document.activeElement;
    return at.getAttribute("aria-label") ?? at.textContent ?? "";
}"""
MOST_STOPS = 80


def enter(page: Page, view: str) -> None:
    """Go to the one tab stop of a view, and from there to the first of its stops."""
    assert page.locator(f"{view} [tabindex='0']").count() == 1
    page.locator(f"{view} [tabindex='0']").focus()
    for _ in range(MOST_STOPS):
        here = page.evaluate(NAME)
        page.keyboard.press("ArrowLeft")
        if page.evaluate(NAME) == here:
            page.keyboard.press("ArrowUp")
        if page.evaluate(NAME) == here:
            return
    raise AssertionError(f"there is no first stop in {view}")


def walk_to(page: Page, name: str) -> None:
    """From stop to stop by arrow keys; what keeps left and right for itself is left by down."""
    seen: list[str] = []
    for _ in range(MOST_STOPS):
        here = page.evaluate(NAME)
        if here.startswith(name):
            return
        seen.append(here)
        page.keyboard.press("ArrowRight")
        if page.evaluate(NAME) == here:
            page.keyboard.press("ArrowDown")
    raise AssertionError(f"no way leads to {name!r}; on the way: {seen}")


def down_to(page: Page, name: str) -> None:
    """From a line's stop to the same stop of the next line."""
    page.keyboard.press("ArrowDown")
    assert page.evaluate(NAME).startswith(name)


def do(page: Page, name: str, key: str = "Enter") -> None:
    walk_to(page, name)
    page.keyboard.press(key)


def test_the_dashboard(page: Page, lab: Lab) -> None:
    told = "print(hs[9].status, hs[8].options['priority'], hs[0].options['max_tokens'], gw.paused, dash.selected)"
    pace = "print(gw.engine.pausing.delay_s)"
    cells = ["gw = scripted()\n" + TEN, "dash = gw.dashboard(); dash", told, pace, "gw.resume(); gw.close()"]
    opened(page, lab, "keys-dash.ipynb", cells)
    labkit.run_and_wait(page, 1)
    labkit.run_and_wait(page, 2)
    page.locator("tr[data-line='10'][data-status=queued]").wait_for()
    page.locator("tr[data-line='1'][data-status=decode]").wait_for()
    enter(page, ".mlx-dash")
    do(page, "❚❚ Pause")
    page.locator(".mlx-banner", has_text="Paused").wait_for()
    do(page, "Step")
    do(page, "speed of the scheduler", "ArrowDown")
    page.locator(".mlx-banner", has_text="Slow motion").wait_for()
    do(page, "cancel row 10")
    page.locator("tr[data-line='10'][data-status=cancelled]").wait_for()
    enter(page, ".mlx-dash")
    do(page, "raise the priority of row 9", " ")
    page.locator(".mlx-message", has_text="Raising the priority of row 9: done").wait_for()
    do(page, "select row 8")
    do(page, "let row 1 write 64 tokens more")
    page.locator(".mlx-message", has_text="The limit is now 464 tokens").wait_for()
    labkit.run_and_wait(page, 3)
    assert text_of(page, 3).split("\n")[0] == "cancelled 1 464 True [8]"
    labkit.run_and_wait(page, 4)
    assert text_of(page, 4).strip() == "0.2"
    labkit.run_and_wait(page, 5)


def test_the_timeline(page: Page, lab: Lab) -> None:
    cells = ["gw = scripted(step_s=0.002)\n" + TEN + "\ngw.wait_idle()", "view = gw.timeline(); view", "gw.close()"]
    opened(page, lab, "keys-time.ipynb", cells)
    labkit.run_and_wait(page, 1)
    labkit.run_and_wait(page, 2)
    view = page.locator(".mlx-timeline")
    view.locator(".mlx-num", has_text="10 requests").wait_for()
    enter(page, ".mlx-timeline")
    walk_to(page, "show only rows whose prompt")
    page.keyboard.type("tide 3")
    do(page, "Time")
    view.locator(".mlx-by-time[aria-pressed=true]").wait_for()
    do(page, "zoom in")
    do(page, "show the whole run")
    do(page, "Rows as a table")
    view.locator("tbody tr[data-line]").nth(0).wait_for()
    assert view.locator("tbody tr[data-line]").count() == 1
    enter(page, ".mlx-timeline")
    walk_to(page, "show only rows whose prompt")
    page.keyboard.press("End")
    for _ in "tide 3":
        page.keyboard.press("Backspace")
    view.locator("tr[data-line='10']").wait_for()
    do(page, "read row 2;")
    view.locator(".mlx-panel[data-line='2'] .mlx-tokens span").nth(3).wait_for()
    do(page, "read row 9;", "Shift+Enter")
    view.locator(".mlx-panel[data-line='9'] .mlx-why", has_text="places were taken").wait_for()
    view.locator(".mlx-compare", has_text="steps that both were in").wait_for()
    enter(page, ".mlx-timeline")
    walk_to(page, "text of row 2,")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    view.locator(".mlx-readout", has_text="row #2: token 2").wait_for()
    enter(page, ".mlx-timeline")
    walk_to(page, "Rows by step")
    page.keyboard.press("Home")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+Enter")
    view.locator(".mlx-why-head", has_text="What did #9 do at step").wait_for()
    do(page, "Clear the marked steps")
    view.locator(".mlx-clear").wait_for(state="hidden")
    walk_to(page, "close row 2")
    down_to(page, "close row 9")
    page.keyboard.press("Enter")
    view.locator(".mlx-panel[data-line='9']").wait_for(state="detached")
    labkit.run_and_wait(page, 3)


def test_the_stream(page: Page, lab: Lab) -> None:
    cells = [
        "gw = scripted()\nhs = [gw.submit('tide %d' % i, raw=True, max_tokens=400, logprobs=0) for i in range(3)]",
        "view = gw.stream(hs); view",
        "print(hs[1].status, view.selected)",
        "gw.close()",
    ]
    opened(page, lab, "keys-stream.ipynb", cells)
    labkit.run_and_wait(page, 1)
    labkit.run_and_wait(page, 2)
    view = page.locator(".mlx-stream")
    view.locator(".mlx-by-token").nth(2).wait_for()
    enter(page, ".mlx-stream")
    do(page, "Side by side")
    view.and_(page.locator(".mlx-side-by-side")).wait_for()
    do(page, "row 3: tide 2")
    view.locator(".mlx-row[data-line='3'][aria-selected=true]").wait_for()
    enter(page, ".mlx-stream")
    do(page, "Tokens")
    view.locator(".mlx-row[data-line='1'] .mlx-tokens span").nth(3).wait_for()
    walk_to(page, "answer to: tide 0, token by token")
    page.keyboard.press("ArrowRight")
    view.locator(".mlx-token-facts", has_text="token 1 ").first.wait_for()
    enter(page, ".mlx-stream")
    walk_to(page, "row 1: tide 0")
    down_to(page, "row 2: tide 1")
    do(page, "Cancel")
    view.locator(".mlx-row[data-line='2'][data-status=cancelled]").wait_for()
    labkit.run_and_wait(page, 3)
    assert text_of(page, 3).strip() == "cancelled [3]"
    enter(page, ".mlx-stream")
    do(page, "Cancel all")
    view.locator(".mlx-row[data-line='3'][data-status=cancelled]").wait_for()
    labkit.run_and_wait(page, 4)
