"""Makes the pictures of docs/traces.md from a real run of SmolLM2; give it a folder, or they go to docs/images."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt

import mlx_notebook as mn
from mlx_notebook import plots

PROMPTS = [
    "Tell me about a fox.",
    "Name three rivers of Europe.",
    "Write a haiku about rain.",
    "What is a tide?",
    "Summarise in one sentence: " + "The tide comes in twice a day, and the moon is the reason. " * 20,
    "Say hello in French.",
    "Why is the sky blue?",
    "Give a title for a paper about sleep.",
    "Name a prime number above one hundred.",
    "Translate into German: good morning.",
    "What do bees eat?",
    "Count to ten.",
]


def run() -> mn.Trace:
    """Twelve requests that come over two seconds, into four places; one is cancelled."""
    with mn.Gateway("smollm2", batch=4) as gateway:
        gateway.submit("Warm up.", max_tokens=4).result()
        handles = []
        for place, prompt in enumerate(PROMPTS):
            handles.append(gateway.submit(prompt, max_tokens=16 + 6 * (place % 4), seed=place))
            time.sleep(0.15)
        handles[3].cancel()
        for handle in handles:
            handle.exception()
        return gateway.trace(text=True)


def main(folder: Path) -> None:
    """Write the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    trace = run()
    for name, draw in (("gantt", plots.gantt), ("occupancy", plots.occupancy), ("latencies", plots.latencies)):
        draw(trace)
        plt.savefig(folder / f"run_{name}.png", dpi=110)
        plt.close()
        print(folder / f"run_{name}.png")
    for row_id in list(trace.recording.requests)[-3:]:
        print(row_id, *(f"{one.code}: {one.text}" for one in trace.explain(row_id)), sep="\n    ")
    trace.save(folder / "run.json.gz")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("docs/images"))
