"""Whole runs beside Transformers' continuous batching in PyTorch, the two processes one after the other.

Ours runs first; then the model leaves this process, and `benchmarks.torch_child` reads the same weights from a folder.
Prompts differ in each round, since both could keep them. Needs PyTorch; where it is absent, that is said.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.environment import CHECKOUT
from benchmarks.fast.folder import config_of, never, save_folder
from benchmarks.fast.runs import run_ours
from benchmarks.fast.steps import named
from benchmarks.fast.table import OURS
from benchmarks.fast.work import checked, prompt

if TYPE_CHECKING:
    from benchmarks.fast.sides import Sides
    from benchmarks.fast.table import Table
    from benchmarks.fast.work import Work

PEER = "generate_batch of Transformers"
PYTHON = "MLX_NOTEBOOK_TORCH_PYTHON"
"""Names another interpreter, which has PyTorch."""


def transformers(table: Table, sides: Sides, work: Work) -> None:
    """Tokens a second of whole runs; for Llamas whose weights are not quantised."""
    why_not = obstacle(sides)
    if why_not:
        print(f"{sides.shape} {table.name}: {why_not}", flush=True)
        return
    counts, salt = work.rows_or(8, 32, 128), itertools.count()
    batches = [
        [[prompt(next(salt), work.prompt, sides.loaded.vocab) for _ in range(rows)] for _ in range(work.rounds + 1)]
        for rows in counts
    ]
    with tempfile.TemporaryDirectory() as folder:
        save_folder(sides.loaded, Path(folder))
        asked = {"folder": folder, "never": never(sides.loaded), "answer": work.answer, "batches": batches}
        asked["dtype"] = config_of(sides.loaded)["dtype"]
        gateway = sides.gateway(max(counts))
        for rows, each in zip(counts, batches, strict=True):
            table.samples[named(OURS, rows)] = [run_ours(gateway, prompts, work.answer) for prompts in each][1:]
        del gateway
        sides.unload()
        said = child(asked)
    table.report.settings["torch"] = f"{said['torch']} on {said['device']}"
    for rows, runs in zip(counts, said["runs"], strict=True):
        table.samples[named(PEER, rows)] = [_sample(run, rows, work.answer) for run in runs][1:]
        what = f"{rows} requests of {work.prompt}+{work.answer}, all at once"
        table.line("rate", named(OURS, rows), named(PEER, rows), what=what, unit="tokens/s")


def obstacle(sides: Sides) -> str:
    """Why this table cannot be measured here; empty where it can."""
    if PYTHON not in os.environ and find_spec("torch") is None:
        return f"not measured, PyTorch is not installed here ({PYTHON} may name an interpreter that has it)"
    if sides.loaded.shape.bits is not None or sides.loaded.model.args.model_type != "llama":
        return "not measured, only Llamas with weights as they are can be read by both"
    return ""


def child(asked: dict[str, Any]) -> dict[str, Any]:
    """What Transformers' process measured.

    Raises:
        RuntimeError: it failed; the end of what it said is in the message.
    """
    command = [os.environ.get(PYTHON, sys.executable), "-m", "benchmarks.torch_child"]
    alone = {**os.environ, "HF_HUB_OFFLINE": "1"}  # it looks for attention kernels on the Hub where nothing else is
    done = subprocess.run(
        command, input=json.dumps(asked), capture_output=True, text=True, check=False, cwd=CHECKOUT, env=alone
    )
    if done.returncode:
        raise RuntimeError(f"{PEER} ended with {done.returncode}: {done.stderr[-3000:]}")
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def _sample(run: dict[str, float], rows: int, answer: int) -> dict[str, float]:
    checked([int(run["rows"])], rows, f"{PEER}, rows")
    made = checked([int(run["fewest"]), int(run["most"])], answer, PEER) // 2 * rows
    return {"rate": made / run["seconds"], "seconds": run["seconds"]}
