"""Takes the README's picture: cells of one notebook that share a batch, in JupyterLab, with the real model.

Run from the repository's root, with Chromium and playwright: `python -m scripts.picture_of_cells`.
"""

from __future__ import annotations

import pathlib
import tempfile

from playwright.sync_api import sync_playwright

from tests.e2e import labkit

OUT = pathlib.Path("docs/images/first_cell.png")
CELLS = (
    "%load_ext mlx_notebook\n%mlxload smollm2",
    "%%mlxgen --max-tokens 160 --temperature 0.7 --seed 4 --into story\nTell me about a fox who learns to sail.",
    "%%mlxgen --max-tokens 160 --temperature 0.7 --seed 1 --into tea\nHow do I make a good cup of tea?",
    '%%mlxgen --choices positive,negative --into mood\nIs this review positive or negative? "I could not put it down."',
)
LONG_ENOUGH = "el => el.innerText.length > 420"


def main() -> None:
    """Run the cells one after the other without waiting for their answers, and take the picture while two write."""
    with tempfile.TemporaryDirectory() as folder, labkit.lab_server(pathlib.Path(folder)) as lab:
        labkit.write_notebook(lab.root / "cells.ipynb", CELLS)
        with sync_playwright() as playwright:
            browser = labkit.launch(playwright)
            page = browser.new_page(viewport={"width": 1100, "height": 860})
            labkit.open_notebook(page, lab, "cells.ipynb")
            labkit.command(page, "application:toggle-left-area")
            for index in range(len(CELLS)):
                labkit.run_and_wait(page, index)
            labkit.wait_for_output(page, 3, "text/html")
            story = labkit.output_area(page, 1).element_handle()
            page.wait_for_function(LONG_ENOUGH, arg=story)
            page.screenshot(path=OUT)
            browser.close()
    print(OUT)


if __name__ == "__main__":
    main()
