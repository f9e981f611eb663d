"""Pictures of the live view for whoever looks: light and dark, narrow and wide."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e import labkit
from tests.e2e.cells import SETUP

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.e2e.labkit import Lab

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

ONE = """\
fox = FakeRow("Tell me about a fox, and say where it lives, what it eats, and whom it fears")
for word in "A fox is a small, clever animal with red fur and a bushy tail. It lives in".split(): fox.say(word + " ")
one = show(fox, keep=True)
"""
SIX = """\
rows = [FakeRow(p) for p in ("Tell me about a fox", "Summarise: a long report about the tides of the northern seas",
    "Translate: guten Morgen", "Name three rivers", "Write a haiku", "What is 7 x 8?")]
rows[0].say("A fox is a small, clever animal with red fur.\\n\\n- It lives in dens\\n- It hunts at ")
rows[1].read(1920, 2900)
rows[2].wait_for("every place is taken; row 2 is reading a long prompt")
rows[3].say("The Nile, the Danube and the Amazon are three rivers that"); rows[3].finish("max_tokens")
rows[4].say("Autumn moonlight"); rows[4].end_cancelled()
rows[5].say("7 x"); rows[5].fail("ValueError: my_processor returned logits of shape (3,), expected (1, 49152)")
six = show(*rows)
"""
FROZEN = """\
rows = [FakeRow("Name three rivers"), FakeRow("Write a haiku")]
rows[0].say("The Nile, the Danube and the Amazon are three rivers that"); rows[0].finish("max_tokens")
rows[1].say("Autumn moonlight —\\na worm digs silently\\ninto the chestnut."); rows[1].finish()
show(*rows);
"""


@pytest.mark.parametrize("theme", ["Light", "Dark"])
@pytest.mark.parametrize("width", [420, 1000, 1700])
def test_views_fit_and_follow_the_theme(page: Page, lab: Lab, theme: str, width: int) -> None:
    name = f"pictures-{theme}-{width}.ipynb"
    labkit.write_notebook(lab.root / name, [SETUP, ONE, SIX, FROZEN])
    page.set_viewport_size({"width": width, "height": 1100})
    page.emulate_media(reduced_motion="reduce")
    labkit.open_notebook(page, lab, name)
    page.evaluate(f"() => window.jupyterapp.commands.execute('apputils:change-theme', {{theme: 'JupyterLab {theme}'}})")
    page.wait_for_function(f"() => document.body.dataset.jpThemeLight === '{'true' if theme == 'Light' else 'false'}'")
    if page.evaluate("() => window.jupyterapp.shell.leftCollapsed") is False:
        labkit.command(page, "application:toggle-left-area")
    page.evaluate(f"() => {labkit.PANEL}.content.widgets.forEach((cell) => {{ cell.inputHidden = true; }})")
    for i in range(4):
        labkit.run_and_wait(page, i)
    labkit.wait_for_output(page, 3, "text/html")
    page.locator(".mlx-row[data-status=failed]").wait_for()
    page.locator(".mlx-text").first.wait_for()
    labkit.screenshot(page, f"stream-{theme.lower()}-{width}")
    sticking_out = page.evaluate(
        "() => [...document.querySelectorAll('.mlx-stream')].flatMap((view) => {"
        " const edge = view.getBoundingClientRect().right + 1;"
        " return [...view.querySelectorAll('*')].filter((e) => !e.closest('.mlx-unseen')"
        "   && e.getBoundingClientRect().right > edge).map((e) => e.className); })"
    )
    assert sticking_out == []
    assert page.evaluate("() => document.querySelector('.mlx-text').getAnimations({subtree: true}).length") == 0
