"""Dashboard and timeline in JupyterLab: they show a run, act on it while a cell blocks, by click and by keyboard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e import labkit
from tests.e2e.run_cells import SETUP

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.e2e.labkit import Lab

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

TEN = "hs = [gw.submit('Tell me of tide %d' % i, raw=True, max_tokens=400) for i in range(10)]"


def opened(page: Page, lab: Lab, name: str, cells: list[str]) -> None:
    labkit.write_notebook(lab.root / name, [SETUP, *cells])
    page.set_viewport_size({"width": 1280, "height": 1000})
    labkit.open_notebook(page, lab, name)
    labkit.run_and_wait(page, 0)


def until(page: Page, javascript: str, arg: Any = None) -> None:
    page.wait_for_function(javascript, arg=arg)


def text_of(page: Page, index: int) -> str:
    return "".join(str(one.get("text", "")) for one in labkit.outputs(page, index))


def test_actions_reach_the_engine_while_a_cell_blocks(page: Page, lab: Lab) -> None:
    blocking = "while not go.is_set(): time.sleep(0.05)\nprint(said())"
    said = (
        "go = threading.Event()\n"
        "def said(): return (hs[9].status, hs[8].options['priority'], hs[0].options['max_tokens'], gw.paused)\n"
        "def watch():\n"
        "    want = ('cancelled', 1, 464, True)\n"
        "    while said() != want: time.sleep(0.02)\n"
        "    go.set()\n"
        "threading.Thread(target=watch, daemon=True).start()"
    )
    opened(page, lab, "acts.ipynb", ["gw = scripted()\n" + TEN, "gw.dashboard()", said, blocking, "gw.close()"])
    for index in (1, 2, 3):
        labkit.run_and_wait(page, index)
    page.locator("tr[data-line='10'][data-status=queued]").wait_for()
    page.locator("tr[data-line='1'][data-status=decode]").wait_for()
    labkit.run_cell(page, 4)
    page.locator("tr[data-line='10'] .mlx-cancel").click()
    page.locator("tr[data-line='9'] .mlx-sooner").click()
    page.locator("tr[data-line='1'] .mlx-extend").click()
    page.locator("tr[data-line='10'][data-status=cancelled]").wait_for()
    page.locator(".mlx-pause").click()
    labkit.wait_cell(page, 4)
    assert "'cancelled'" in text_of(page, 4)
    assert "1, 464, True" in text_of(page, 4)
    page.locator(".mlx-banner", has_text="Paused").wait_for()
    page.locator(".mlx-pause", has_text="Resume").click()
    page.locator(".mlx-banner", has_text="Paused").wait_for(state="hidden")
    labkit.run_and_wait(page, 5)
    data = labkit.wait_for_output(page, 2, "image/png")
    assert "dashboard of demo" in str(data)


def test_a_cancel_in_prefill_frees_the_place(page: Page, lab: Lab) -> None:
    slow = (
        "gw = scripted(places=1, read_s=0.02)\n"
        "long = gw.submit('x' * 4000, raw=True)\n"
        "next_one = gw.submit('y', raw=True)"
    )
    opened(page, lab, "prefill.ipynb", [slow, "gw.dashboard()", "gw.close()"])
    labkit.run_and_wait(page, 1)
    labkit.run_and_wait(page, 2)
    page.locator("tr[data-line='1'][data-status=prefill] .mlx-cancel").click()
    page.locator("tr[data-line='1'][data-status=cancelled]").wait_for()
    page.locator("tr[data-line='2'][data-status=decode], tr[data-line='2'][data-status=finished]").wait_for()
    labkit.run_and_wait(page, 3)


def test_a_pause_shows_in_the_streams_and_an_interrupt_resumes(page: Page, lab: Lab) -> None:
    cells = [
        "gw = scripted()\nh = gw.submit('tell', raw=True, max_tokens=2000)",
        "gw.stream(h)",
        "gw.dashboard()",
        "gw.pause(); print(gw.paused)",
        "h.result()",
        "print(gw.paused); gw.close()",
    ]
    opened(page, lab, "pause.ipynb", cells)
    for index in (1, 2, 3, 4):
        labkit.run_and_wait(page, index)
    page.locator(".mlx-stream .mlx-note", has_text="paused").wait_for()
    labkit.run_cell(page, 5)
    page.wait_for_timeout(200)
    labkit.command(page, "notebook:interrupt-kernel")
    labkit.wait_cell(page, 5)
    assert "KeyboardInterrupt" in str(labkit.outputs(page, 5))
    labkit.run_and_wait(page, 6)
    assert "False" in text_of(page, 6)


def test_everything_by_keyboard(page: Page, lab: Lab) -> None:
    opened(page, lab, "keys.ipynb", ["gw = scripted()\n" + TEN, "gw.dashboard()", "gw.timeline(hs[:3])", "gw.close()"])
    for index in (1, 2, 3):
        labkit.run_and_wait(page, index)
    page.locator("tr[data-line='10'][data-status=queued]").wait_for()
    assert page.locator(".mlx-dash [tabindex='0']").count() == 1
    page.locator(".mlx-dash [tabindex='0']").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")  # pause
    page.locator(".mlx-banner", has_text="Paused").first.wait_for()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")  # the chart: its arrows walk through the steps
    page.keyboard.press("ArrowDown")  # the first row
    page.keyboard.press("ArrowRight")
    focused = "() => document.activeElement.getAttribute('aria-label')"
    assert page.evaluate(focused) == "cancel row 10"
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused) == "cancel row 9"
    page.keyboard.press("Enter")
    page.locator("tr[data-line='9'][data-status=cancelled]").wait_for()
    assert labkit.cell_count(page) == 5
    page.keyboard.press("d")
    page.keyboard.press("d")
    assert labkit.cell_count(page) == 5
    page.locator(".mlx-timeline canvas").focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Shift+ArrowLeft")
    page.locator(".mlx-timeline .mlx-clear:not([hidden])").wait_for()
    labkit.run_and_wait(page, 4)


def test_a_second_look_and_a_reload_show_the_same(page: Page, lab: Lab) -> None:
    cells = ["gw = scripted(step_s=0.002)\n" + TEN + "\ngw.wait_idle()", "gw.timeline()", "gw.timeline()", "gw.close()"]
    opened(page, lab, "late.ipynb", cells)
    for index in (1, 2, 3):
        labkit.run_and_wait(page, index)
    count = page.locator(".mlx-timeline .mlx-bar .mlx-num")
    both = "() => [...document.querySelectorAll('.mlx-timeline .mlx-bar .mlx-num')]"
    until(page, both + ".filter((one) => one.textContent.startsWith('10 requests')).length === 2")
    before = count.all_inner_texts()
    assert before[0] == before[1]
    labkit.save(page)
    page.reload()
    labkit.wait_open(page)
    page.locator(".mlx-timeline .mlx-num", has_text="10 requests").last.wait_for()
    assert count.first.inner_text() == before[0]
    labkit.run_and_wait(page, 4)


HOSTILE = """\
bad = ["<img src=x onerror=window.hurt=1>", "</script><script>window.hurt=1</script>", "\\u202e right to left",
       "\\x1b[31m red", "\\ud800", "M" * 1_000_000, "&lt;b&gt;"]
gw = scripted(places=2, step_s=0.01, words=bad)
hs = [gw.submit("<b onmouseover=window.hurt=1>" + "\\u202e" + "x" * 50, raw=True, max_tokens=7) for _ in range(2)]
gw.wait_idle()
"""


def test_hostile_text_is_text(page: Page, lab: Lab) -> None:
    cells = [
        HOSTILE,
        "t = gw.timeline(hs[:1]); t",
        "gw.dashboard()",
        "gw.stream(hs)",
        "t.to_html('hostile.html'); gw.close()",
    ]
    opened(page, lab, "hostile.ipynb", cells)
    for index in (1, 2, 3, 4):
        labkit.run_and_wait(page, index)
    page.locator(".mlx-timeline .mlx-tokens span").nth(5).wait_for()
    page.locator(".mlx-stream .mlx-by-token").first.click()
    page.locator(".mlx-stream .mlx-tokens span").nth(5).wait_for()
    inside = ".mlx-board img, .mlx-board script, .mlx-stream img, .mlx-stream script, .mlx-board b[onmouseover]"
    assert page.locator(inside).count() == 0
    labkit.run_and_wait(page, 5)
    labkit.wait_for_output(page, 2, "text/html")
    page.goto((lab.root / "hostile.html").as_uri())
    page.locator(".mlx-timeline .mlx-tokens span, .mlx-timeline canvas").first.wait_for()
    assert page.evaluate("() => window.hurt") is None
    assert page.locator(inside).count() == 0
