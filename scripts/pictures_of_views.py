"""Takes the pictures in docs/images/views: each view in each state, light and dark, narrow and wide.

Run from the repository's root, with Chromium and playwright: `python -m scripts.pictures_of_views`. The views are
one-file pages of a made-up run, except that buttons are shown as if a kernel listened.
"""

from __future__ import annotations

import pathlib
import re
import tempfile
from typing import TYPE_CHECKING, Any

from playwright.sync_api import sync_playwright

from mlx_notebook.notebook.dashboard_widget import Dashboard
from mlx_notebook.notebook.run_picture import png
from mlx_notebook.notebook.timeline_widget import Timeline
from tests.e2e import labkit
from tests.notebook.fake_run import FakeFeed, simulate

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, Page

OUT = pathlib.Path("docs/images/views")
WIDTHS = {"wide": 1000, "narrow": 420}


def live(view: Any, path: pathlib.Path) -> pathlib.Path:
    """A page whose widget believes that a kernel listens."""
    page = view.to_html()
    page = page.replace('"live":false,"final":true', '"live":true,"final":false')
    path.write_text(page, encoding="utf-8")
    return path


def run(turns: int = 45, **figures: Any) -> FakeFeed:
    """A run of so many turns, from the scripted simulation."""
    feed = FakeFeed(simulate(turns))
    feed.changed.update(figures)
    return feed


def failed_run() -> FakeFeed:
    """A run with a row that failed."""
    feed = run(78)
    table = feed.body["requests"]
    table["status"][6], table["note"][6] = "failed", "failed: ValueError: my_processor returned logits of shape (3,)"
    return feed


def select_two(page: Page) -> None:
    """Two requests selected, a token pointed at."""
    chart = page.locator(".mlx-timeline canvas")
    box = chart.bounding_box()
    if box is None:
        raise RuntimeError("the chart is not on the page")
    x = box["width"] * 0.42
    chart.click(position={"x": x, "y": 10 + 19 * 7})
    chart.click(position={"x": x, "y": 10 + 19 * 5}, modifiers=["Shift"])
    page.locator(".mlx-tokens span").nth(8).hover()


def brush(page: Page) -> None:
    """A stretch of steps brushed."""
    chart = page.locator(".mlx-timeline canvas")
    chart.click(position={"x": 40, "y": 10 + 19 * 7})
    box = chart.bounding_box()
    if box is None:
        raise RuntimeError("the chart is not on the page")
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.86, box["y"] + 40)
    page.mouse.up()
    page.mouse.move(5, 5)


def table(page: Page) -> None:
    """The table beside the drawing, opened."""
    page.locator(".mlx-rows-table summary").click()


def by_time(page: Page) -> None:
    """By time."""
    page.locator(".mlx-by-time").click()


def nothing(_page: Page) -> None:
    """As it opens."""


SHOTS: dict[str, tuple[type, Callable[[], FakeFeed], Callable[[Page], None]]] = {
    "dashboard-running": (Dashboard, lambda: run(27), nothing),
    "dashboard-paused": (Dashboard, lambda: run(34, paused=True), nothing),
    "dashboard-slow-motion": (Dashboard, lambda: run(34, delay_ms=500), nothing),
    "dashboard-over": (Dashboard, failed_run, nothing),
    "dashboard-empty": (Dashboard, lambda: FakeFeed({"requests": {"id": [], "status": []}, "now": 0}), nothing),
    "timeline-all": (Timeline, failed_run, nothing),
    "timeline-two-rows": (Timeline, lambda: run(78), select_two),
    "timeline-brushed": (Timeline, lambda: run(78), brush),
    "timeline-by-time": (Timeline, lambda: run(78), by_time),
    "timeline-table": (Timeline, lambda: run(60), table),
}


def shoot(browser: Browser, name: str, path: pathlib.Path, act: Callable[[Page], None]) -> None:
    """Shoot."""
    for width_name, width in WIDTHS.items():
        for scheme in ("light", "dark"):
            context = browser.new_context(viewport={"width": width, "height": 700}, color_scheme=scheme)
            page = context.new_page()
            page.goto(path.as_uri())
            page.locator(".mlx-board").wait_for()
            act(page)
            page.wait_for_timeout(250)  # the drawers' rest
            page.locator(".mlx-board").screenshot(path=OUT / f"{name}-{width_name}-{scheme}.png")
            context.close()


def main() -> None:
    """Main."""
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = labkit.launch(playwright)
        for name, (view_class, feed, act) in SHOTS.items():
            page = live(view_class(feed()), pathlib.Path(folder) / f"{name}.html")
            if re.search(r"over|table|two|brushed|time|all", name):
                page.write_text(view_class(feed()).to_html(), encoding="utf-8")
            shoot(browser, name, page, act)
        browser.close()
    (OUT / "frozen.png").write_bytes(png(failed_run().whole(), "smollm2"))


if __name__ == "__main__":
    main()
