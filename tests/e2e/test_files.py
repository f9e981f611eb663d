"""The files that `to_html()` writes open by themselves: without a network, light and dark, with and without script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import pytest

from mlx_notebook.notebook.dashboard_widget import Dashboard
from mlx_notebook.notebook.stream_widget import StreamView
from mlx_notebook.notebook.timeline_widget import Timeline
from tests.e2e.contrast import faint_words
from tests.notebook.view_pages import FOX, failed_run, many_rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from playwright.sync_api import Browser

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

FAILURE = "my_processor returned logits of shape (3,)"
TIDE = "The tide is the slow breath"


class File(NamedTuple):
    """A view, and what is to be read in its file."""

    view: Callable[[], Dashboard | Timeline | StreamView]
    words: tuple[str, ...]


def timeline() -> Timeline:
    view = Timeline(failed_run())
    view.selected, view.brush = [7, 3], [10, 20]
    return view


FILES = {
    "dashboard": File(lambda: Dashboard(failed_run()), (FAILURE, "Write a haiku")),
    "timeline": File(timeline, (FAILURE, TIDE)),
    "stream": File(lambda: StreamView(many_rows(), title="smollm2"), (FOX, "Autumn moonlight", "cut at max_tokens")),
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_opens_without_a_network_and_can_be_read(
    browser: Browser, tmp_path: Path, name: str, script: bool, scheme: Literal["light", "dark"]
) -> None:
    path = tmp_path / "view.html"
    FILES[name].view().to_html(path)
    context = browser.new_context(java_script_enabled=script, color_scheme=scheme, offline=True)
    page = context.new_page()
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text))
    page.goto(path.as_uri())
    for words in FILES[name].words:
        page.locator("body").get_by_text(words).first.wait_for()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert complaints == []
    if script:  # a page whose scripts are off cannot be asked
        assert faint_words(page, "body *") == []
    context.close()
