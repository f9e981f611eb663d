"""What watching costs: three open views of a real model's batch, in a real page: `python -m benchmarks.views_cost`.

A dashboard, a timeline and a stream are open in JupyterLab (headless Chromium) while eight rows write. Beside the
engine's processor time stands that of watching it: the publisher's thread, the thread that sends its messages, and
what the engine spends on its log (its records, each at the price of one, measured there and then).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.harness import Report, compare, finish

if TYPE_CHECKING:
    from playwright.sync_api import Page

BAR = 0.03
ROWS, TOKENS = 8, 96

SETUP = """\
%load_ext mlx_notebook
import json, threading, time
import mlx_notebook as mn
from mlx_notebook.core.ring import Kind, Ring
gw = mn.Gateway("smollm2")
gw.generate("Hello.", max_tokens=4)

def spent(*names):
    "Seconds of processor time of the threads whose names begin so."
    threads = [t for t in threading.enumerate() if t.name.startswith(names)]
    return sum(time.clock_gettime(time.pthread_getcpuclockid(t.ident)) for t in threads)

def python_threads():
    return spent("")

def price_of_a_record(calls=20_000):
    ring, began = Ring(1 << 12), time.thread_time()
    for number in range(calls):
        ring.record(number, Kind.TOKEN, 1, number, 7)
    return (time.thread_time() - began) / calls
"""
ASK = f"""\
gw.pause()
hs = [gw.submit("Write a long story about a fox.", max_tokens={TOKENS}, seed=i, temperature=0.8, logprobs=2)
      for i in range({ROWS})]
gw.stream(hs)
"""
RUN = """\
watching, engine, others = ("mlx-notebook-publisher", "IOPub"), "mlx-notebook engine", python_threads()
before = dict(whole=time.process_time(), watching=spent(*watching), engine=spent(engine))
first = gw._loop.ring.recorded
gw.resume()
gw.wait_idle()
whole = time.process_time() - before["whole"]
watched = spent(*watching) - before["watching"]
idle = python_threads() - others - watched - (spent(engine) - before["engine"])
records = gw._loop.ring.recorded - first
print(json.dumps(dict(
    engine_s=whole - watched - idle, publishing_s=watched, recording_s=records * price_of_a_record(),
    tokens=sum(h.result().generated_tokens for h in hs))))
"""


def one_run(page: Page, first: int) -> dict[str, float]:
    """Processor seconds of one batch, as the kernel counts them; the cells `first` and the next are its own."""
    from tests.e2e import labkit

    labkit.run_and_wait(page, first)
    labkit.output_area(page, first).locator(".mlx-stream").wait_for()
    labkit.run_and_wait(page, first + 1)
    facts: dict[str, float] = json.loads("".join(str(o.get("text", "")) for o in labkit.outputs(page, first + 1)))
    if facts["tokens"] != ROWS * TOKENS:
        raise RuntimeError(f"{facts['tokens']} tokens instead of {ROWS * TOKENS}")
    return facts


def runs(rounds: int) -> list[dict[str, float]]:
    """So many batches watched in one page; the first is thrown away."""
    from playwright.sync_api import sync_playwright

    from tests.e2e import labkit

    with tempfile.TemporaryDirectory() as folder, labkit.lab_server(Path(folder)) as lab, sync_playwright() as one:
        browser = labkit.launch(one)
        page = browser.new_page(viewport={"width": 1280, "height": 2400})
        page.set_default_timeout(0)
        cells = [SETUP, "gw.dashboard()", "gw.timeline()", *([ASK, RUN] * (rounds + 1)), "gw.close()"]
        labkit.write_notebook(lab.root / "watched.ipynb", cells)
        labkit.open_notebook(page, lab, "watched.ipynb")
        for index in range(3):
            labkit.run_and_wait(page, index)
        found = [one_run(page, 3 + 2 * number) for number in range(rounds + 1)]
        labkit.run_and_wait(page, len(cells) - 1)
        browser.close()
    return found[1:]


def main() -> int:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-keep", action="store_true")
    options = parser.parse_args()
    found = runs(options.rounds)
    watching = [{"cpu": one["publishing_s"] + one["recording_s"]} for one in found]
    samples = {"watching": watching, "the engine": [{"cpu": one["engine_s"]} for one in found], "parts": found}
    line = compare(
        samples,
        "cpu",
        ours="watching",
        theirs="the engine",
        what="processor time of three open views",
        unit="s",
        bar=BAR,
        more_is_better=False,
    )
    settings = {"rows": ROWS, "tokens a row": TOKENS, "views": ["dashboard", "timeline", "stream"]}
    return finish(Report("views_cost", "What watching costs", [line], samples, settings), keep=not options.no_keep)


if __name__ == "__main__":
    sys.exit(main())
