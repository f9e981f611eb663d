"""A real answer token by token, and answers beside each other: what the buttons of the stream view show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e import labkit

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.e2e.labkit import Lab

pytestmark = [
    pytest.mark.slow,
    pytest.mark.e2e,
    pytest.mark.usefixtures("smollm2_wheel"),
]

LOAD = "%load_ext mlx_notebook\n%mlxload smollm2"
ASK = "%%mlxgen --max-tokens 24 --temperature 0.9 --seed 3 --logprobs 3 --n 2 --keep --into foxes\nTell me about a fox."
CHANCES = "import math; [round(100 * math.exp(one.logprob)) for one in foxes[0].logprobs][4]"


def test_a_token_says_how_likely_it_was_what_else_it_might_have_been_and_who_shared_its_step(
    page: Page, lab: Lab
) -> None:
    labkit.write_notebook(lab.root / "tokens.ipynb", [LOAD, ASK, CHANCES])
    labkit.open_notebook(page, lab, "tokens.ipynb")
    for cell in range(3):
        labkit.run_and_wait(page, cell)
    chance = labkit.outputs(page, 2)[0]["data"]["text/plain"]
    view = labkit.output_area(page, 1)
    view.get_by_role("button", name="Tokens").first.click()
    view.locator(".mlx-tokens span").nth(4).hover()
    facts = view.locator(".mlx-token-facts").first
    facts.get_by_text("candidates: ").wait_for()
    said = facts.inner_text()
    assert f"token 5 · probability {chance}%" in said
    assert "shared with #" in said
    assert said.count("“") == 3
    labkit.screenshot(page, "stream-tokens")
    view.get_by_role("button", name="Tokens").first.click()
    assert view.locator(".mlx-tokens").count() == 0
    view.get_by_role("button", name="Side by side").click()
    boxes = [view.locator(".mlx-row").nth(row).bounding_box() for row in range(2)]
    assert boxes[0] is not None
    assert boxes[1] is not None
    assert boxes[1]["x"] >= boxes[0]["x"] + boxes[0]["width"] - 2
    labkit.screenshot(page, "stream-side-by-side")
