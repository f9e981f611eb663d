"""Views in pages of any width: nothing sticks out at the side, and sentences keep the room that they need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.test_themes import VIEWS

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

WIDTHS = range(400, 1101, 20)
LEAST_SENTENCE_PX = 100
MEASURE = """() => ({
    over: [...document.querySelectorAll(".mlx-board, .mlx-stream, .mlx-scroll, .mlx-legend, .mlx-bar, .mlx-head")]
        .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth)
        .map((one) => `${one.className}: ${one.scrollWidth} in ${one.clientWidth}`),
    sentences: [...document.querySelectorAll("td.mlx-wide")]
        .filter((one) => one.checkVisibility()).map((one) => one.clientWidth),
})"""


@pytest.mark.parametrize("name", VIEWS)
def test_nothing_sticks_out_and_sentences_have_room(browser: Browser, tmp_path: Path, name: str) -> None:
    path = tmp_path / "view.html"
    path.write_text(VIEWS[name].page(), encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    page.goto(path.as_uri())
    page.locator(".mlx-board, .mlx-stream").wait_for()
    VIEWS[name].act(page)
    for summary in page.locator(".mlx-rows-table summary").all():
        summary.click()
        page.locator(".mlx-rows-table td").first.wait_for()
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        found = page.evaluate(MEASURE)
        assert found["over"] == [], width
        assert [one for one in found["sentences"] if one < LEAST_SENTENCE_PX] == [], width
    context.close()
