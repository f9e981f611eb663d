"""Takes the pictures in docs/images/views: each view in each state, light and dark, narrow and wide.

Run from the repository's root, with Chromium and playwright: `python -m scripts.pictures_of_views [NAME ...]`, all
without a name. `tests/notebook/view_pages.py` makes the pages.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
from typing import TYPE_CHECKING, NamedTuple

from playwright.sync_api import sync_playwright

from mlx_notebook.notebook.dashboard_widget import Dashboard
from mlx_notebook.notebook.run_picture import png
from mlx_notebook.notebook.timeline_widget import Timeline
from tests.e2e import labkit
from tests.notebook import view_pages as pages

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, Locator, Page

OUT = pathlib.Path("docs/images/views")
WIDTHS = {"wide": 1000, "narrow": 420}
VIEW = ".mlx-board, .mlx-stream, .mlx-notebook"
ROW = 19
"""Pixels from row to row in the timeline."""


# ---------------------------------------------------------------- what a reader does


def nothing(_page: Page) -> None:
    """As it opens."""


def lose_the_kernel(page: Page) -> None:
    """The front end gives up the model's connection, as a restart makes it do."""
    page.evaluate("() => { for (const hear of mlx.heard.comm_live_update) hear(); }")


def click_in_vain(page: Page) -> None:
    """Click what no kernel answers."""
    page.locator(".mlx-cancel:visible, .mlx-pause:visible").first.click()
    page.locator(VIEW).get_by_text("No answer").first.wait_for()


def chart(page: Page) -> tuple[Locator, float, float, float]:
    """The timeline's canvas, where it begins, and its width."""
    canvas = page.locator(".mlx-timeline canvas")
    box = canvas.bounding_box()
    if box is None:
        raise RuntimeError("the chart is not on the page")
    return canvas, box["x"], box["y"], box["width"]


def select_two(page: Page) -> None:
    """Two requests selected, a token pointed at."""
    canvas, _, _, width = chart(page)
    canvas.click(position={"x": width * 0.42, "y": 10 + ROW * 7})
    canvas.click(position={"x": width * 0.42, "y": 10 + ROW * 5}, modifiers=["Shift"])
    for _ in range(2):  # the first may move the text away from under the pointer
        page.locator(".mlx-panel[data-line='8'] .mlx-tokens span").nth(1).hover()
        page.locator(".mlx-panel[data-line='8'] .mlx-tokens .mlx-hot").wait_for()


def select_one(page: Page) -> None:
    """One request selected."""
    canvas, _, _, width = chart(page)
    canvas.click(position={"x": width * 0.42, "y": 10 + ROW * 4})
    page.mouse.move(5, 5)


def brush(page: Page) -> None:
    """A stretch of steps brushed."""
    canvas, left, top, width = chart(page)
    canvas.click(position={"x": 40, "y": 10 + ROW * 7})
    page.mouse.move(left + width * 0.7, top + 30)
    page.mouse.down()
    page.mouse.move(left + width * 0.86, top + 40)
    page.mouse.up()
    page.mouse.move(5, 5)


def filtered(page: Page) -> None:
    """Only some rows, the chart zoomed into."""
    page.locator(".mlx-state-filter").select_option("finished")
    page.get_by_label("zoom in").click()
    page.get_by_label("zoom in").click()


def table(page: Page) -> None:
    """The table beside the drawing, opened."""
    page.locator(".mlx-rows-table summary").click()


def by_time(page: Page) -> None:
    """Steps as wide as they took."""
    page.locator(".mlx-by-time").click()


def point_at_a_token(page: Page) -> None:
    """The answer token by token, and what the kernel knows of one that is pointed at."""
    page.get_by_role("button", name="Tokens").first.click()
    page.locator(".mlx-tokens span").nth(4).hover()
    page.wait_for_timeout(200)  # a pointer that rests asks
    page.evaluate(
        """() => {
            const top = [[" clever", -0.7], [" wild", -1.5], [" small,", -2.0]];
            const facts = { step: 31, ms: 84.2, shared: [2, 4, 5], logprob: -2.0,
                            top: top.map(([text, logprob]) => ({ text, logprob })) };
            for (const hear of mlx.heard["msg:custom"]) hear({ kind: "token", row: 0, n: 5, facts });
        }"""
    )


def side_by_side(page: Page) -> None:
    """Answers beside each other, two of them chosen."""
    page.get_by_role("button", name="Side by side").click()
    page.locator(".mlx-prompt").nth(0).click()
    page.locator(".mlx-prompt").nth(3).click()
    page.mouse.move(5, 5)


# ---------------------------------------------------------------- which pictures


class Shot(NamedTuple):
    """A page, and what is done in it before the picture."""

    page: Callable[[], str]
    act: Callable[[Page], None] = nothing


SHOTS: dict[str, Shot] = {
    "dashboard-running": Shot(lambda: pages.dashboard(pages.run(27))),
    "dashboard-paused": Shot(lambda: pages.dashboard(pages.run(34, paused=True))),
    "dashboard-slow-motion": Shot(lambda: pages.dashboard(pages.run(34, delay_ms=500))),
    "dashboard-over": Shot(lambda: pages.saved(Dashboard(pages.failed_run()))),
    "dashboard-empty": Shot(lambda: pages.dashboard(pages.empty_run())),
    "dashboard-lost": Shot(lambda: pages.dashboard(pages.run(27)), lose_the_kernel),
    "dashboard-busy": Shot(lambda: pages.dashboard(pages.run(27)), click_in_vain),
    "dashboard-overwritten": Shot(lambda: pages.dashboard(pages.overwritten_run())),
    "dashboard-recorded": Shot(lambda: pages.recorded(Dashboard(pages.recorded_run()))),
    "timeline-all": Shot(lambda: pages.saved(Timeline(pages.failed_run()))),
    "timeline-two-rows": Shot(lambda: pages.saved(Timeline(pages.run(78))), select_two),
    "timeline-brushed": Shot(lambda: pages.saved(Timeline(pages.run(78))), brush),
    "timeline-by-time": Shot(lambda: pages.saved(Timeline(pages.run(78))), by_time),
    "timeline-filtered": Shot(lambda: pages.saved(Timeline(pages.run(78))), filtered),
    "timeline-table": Shot(lambda: pages.saved(Timeline(pages.run(60))), table),
    "timeline-running": Shot(lambda: pages.timeline(pages.run(27))),
    "timeline-empty": Shot(lambda: pages.timeline(pages.empty_run())),
    "timeline-paused": Shot(lambda: pages.timeline(pages.run(34, paused=True)), select_one),
    "timeline-lost": Shot(lambda: pages.timeline(pages.run(34)), lose_the_kernel),
    "timeline-overwritten": Shot(lambda: pages.timeline(pages.overwritten_run())),
    "timeline-recorded": Shot(lambda: pages.recorded(Timeline(pages.recorded_run())), select_one),
    "stream-one": Shot(lambda: pages.stream(pages.one_row())),
    "stream-waiting": Shot(lambda: pages.stream(pages.waiting_row())),
    "stream-reading": Shot(lambda: pages.stream(pages.reading_row())),
    "stream-paused": Shot(lambda: pages.stream(pages.paused_row())),
    "stream-lost": Shot(lambda: pages.stream(pages.one_row()), lose_the_kernel),
    "stream-busy": Shot(lambda: pages.stream(pages.one_row()), click_in_vain),
    "stream-many": Shot(lambda: pages.stream(*pages.many_rows())),
    "stream-side-by-side": Shot(lambda: pages.stream(*pages.many_rows()), side_by_side),
    "stream-over": Shot(lambda: pages.stream(*pages.done_rows(), final=True)),
    "stream-tokens": Shot(lambda: pages.stream(pages.one_row()), point_at_a_token),
    "stream-right-to-left": Shot(lambda: pages.stream(pages.right_to_left_row())),
    "stream-frozen": Shot(lambda: pages.frozen_stream(*pages.done_rows())),
}


def shoot(browser: Browser, name: str, path: pathlib.Path, act: Callable[[Page], None]) -> None:
    """Four pictures of one state."""
    for width_name, width in WIDTHS.items():
        for scheme in ("light", "dark"):
            context = browser.new_context(
                viewport={"width": width, "height": 1600}, color_scheme=scheme, reduced_motion="reduce"
            )
            page = context.new_page()
            page.goto(path.as_uri())
            page.locator(VIEW).wait_for()
            act(page)
            page.wait_for_timeout(250)  # the drawers' rest
            page.locator(VIEW).screenshot(path=OUT / f"{name}-{width_name}-{scheme}.png")
            context.close()


def main(names: list[str]) -> None:
    """Take those of these names, or all."""
    if unknown := set(names) - {*SHOTS, "frozen"}:
        raise SystemExit(f"there is no picture of {', '.join(sorted(unknown))}; there are {', '.join(SHOTS)}")
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = labkit.launch(playwright)
        for name, (make, act) in SHOTS.items():
            if names and name not in names:
                continue
            path = pathlib.Path(folder) / f"{name}.html"
            path.write_text(make(), encoding="utf-8")
            shoot(browser, name, path, act)
        browser.close()
    if not names or "frozen" in names:
        (OUT / "frozen.png").write_bytes(png(pages.failed_run().whole(), "smollm2"))


if __name__ == "__main__":
    main(sys.argv[1:])
