"""Every word of every view can be read in the themes that front ends wear, whatever the system's own is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import pytest

from mlx_notebook.notebook.timeline_widget import Timeline
from tests.e2e.contrast import faint_words
from tests.notebook import view_pages as pages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

# VS Code's own themes as its webviews tell them: classes of the body, and of its many colours those that views read.
# Its Jupyter extension hands the same on under JupyterLab's names (jupyterlabThemeBridge.css), as far as is said here.
LIGHT_MODERN = {
    "--vscode-foreground": "#3b3b3b",
    "--jp-ui-font-color1": "#3b3b3b",
    "--jp-ui-font-color2": "#3b3b3b",
    "--jp-layout-color1": "#f8f8f8",
    "--jp-layout-color2": "#f8f8f8",
    "--jp-border-color2": "#e5e5e5",
}
DARK_MODERN = {
    "--vscode-foreground": "#cccccc",
    "--jp-ui-font-color1": "#cccccc",
    "--jp-ui-font-color2": "#cccccc",
    "--jp-layout-color1": "#313131",
    "--jp-layout-color2": "#313131",
    "--jp-border-color2": "#2b2b2b",
}
HIGH_CONTRAST = {
    "--vscode-foreground": "#ffffff",
    "--vscode-descriptionForeground": "rgba(255, 255, 255, 0.7)",
    "--vscode-editor-background": "#000000",
    "--vscode-sideBar-background": "#000000",
    "--jp-border-color2": "#6fc3df",
}
HIGH_CONTRAST_LIGHT = {
    "--vscode-foreground": "#292929",
    "--vscode-descriptionForeground": "rgba(41, 41, 41, 0.7)",
    "--vscode-editor-background": "#ffffff",
    "--vscode-sideBar-background": "#ffffff",
    "--jp-border-color2": "#0f4a85",
}
# JupyterLab's own, from its packages @jupyterlab/theme-light-extension and -dark-extension.
LAB_LIGHT = {
    "--jp-ui-font-color1": "rgba(0, 0, 0, 0.87)",
    "--jp-ui-font-color2": "rgba(0, 0, 0, 0.54)",
    "--jp-layout-color1": "white",
    "--jp-layout-color2": "#eee",
    "--jp-border-color2": "#e0e0e0",
}
LAB_DARK = {
    "--jp-ui-font-color1": "rgba(255, 255, 255, 0.87)",
    "--jp-ui-font-color2": "rgba(255, 255, 255, 0.54)",
    "--jp-layout-color1": "#212121",
    "--jp-layout-color2": "#424242",
    "--jp-border-color2": "#424242",
}
THEMES: dict[str, Mapping[str, str]] = {
    "jupyterlab-light": LAB_LIGHT,
    "jupyterlab-dark": LAB_DARK,
    "vscode-light": LIGHT_MODERN,
    "vscode-dark": DARK_MODERN,
    "vscode-high-contrast": HIGH_CONTRAST,
    "vscode-high-contrast vscode-high-contrast-light": HIGH_CONTRAST_LIGHT,
}


def timeline() -> str:
    view = Timeline(pages.failed_run())
    view.selected, view.brush = [7, 3], [10, 20]
    return pages.live(view)


def choose_each(page: Page) -> None:
    """A chosen line has another background; of the dashboard one is, of the stream any number."""
    for line in page.locator(".mlx-stream .mlx-prompt, .mlx-dash tr[data-line='3'] .mlx-pick").all():
        line.click()


def show_tokens(page: Page) -> None:
    """Each degree of surprise has its shade."""
    page.locator(".mlx-by-token:visible").first.click()
    page.locator(".mlx-coloured [data-p='3']").first.wait_for()
    page.locator(".mlx-coloured [data-p='1']").first.wait_for()


def nothing(_page: Page) -> None:
    """As it opens."""


class View(NamedTuple):
    """A view's page, and what is done in it before it is read."""

    page: Callable[[], str]
    act: Callable[[Page], None] = nothing


VIEWS = {
    "dashboard": View(lambda: pages.dashboard(pages.run(34, paused=True))),
    "dashboard-chosen": View(lambda: pages.dashboard(pages.run(34, paused=True)), choose_each),
    "timeline": View(timeline),
    "stream": View(lambda: pages.stream(*pages.many_rows())),
    "stream-chosen": View(lambda: pages.stream(*pages.many_rows()), choose_each),
    "stream-tokens": View(lambda: pages.stream(pages.one_row()), show_tokens),
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", VIEWS)
def test_every_word_can_be_read(
    browser: Browser, tmp_path: Path, name: str, theme: str, scheme: Literal["light", "dark"]
) -> None:
    path = tmp_path / "view.html"
    path.write_text(VIEWS[name].page(), encoding="utf-8")
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto(path.as_uri())
    page.locator(".mlx-board, .mlx-stream").wait_for()
    page.evaluate(
        "([theme, colours]) => {"
        " if (theme.startsWith('jupyterlab')) document.body.dataset.jpThemeLight = theme === 'jupyterlab-light';"
        " else document.body.className = theme;"
        " for (const [name, value] of Object.entries(colours)) document.body.style.setProperty(name, value); }",
        [theme, dict(THEMES[theme])],
    )
    VIEWS[name].act(page)
    assert faint_words(page, ".mlx-board *, .mlx-stream *") == []
    context.close()
