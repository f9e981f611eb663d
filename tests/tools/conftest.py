"""One small notebook with the real model, and how each tool runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

REPOSITORY = Path(__file__).parents[2]
FOX = "Tell me about a fox."
FRANCE = "What is the capital of France?"

CELLS = (
    "%load_ext mlx_notebook\nimport mlx_notebook as mn",
    "%mlxload smollm2",
    f"%%mlxgen --max-tokens 12 --into fox\n{FOX}",
    f"%%mlxgen --max-tokens 12 --temperature 0.8 --seed 7\n{FRANCE}",
    "print(fox.text)",
    f"france = mn.submit({FRANCE!r}, max_tokens=12, temperature=0.8, seed=7)\nprint(str(france))",
    f"%%mlxgen --view table --max-tokens 12\n{FOX}",
)
FOX_CELL, FRANCE_CELL, FOX_PRINTED, FRANCE_PRINTED, TABLE_CELL = 2, 3, 4, 5, 6

SCRIPT = f"""
import json
import mlx_notebook as mn

with mn.Gateway("smollm2") as gateway:
    fox = gateway.generate({FOX!r}, max_tokens=12)
    france = gateway.generate({FRANCE!r}, max_tokens=12, temperature=0.8, seed=7)
print(json.dumps([fox.text, france.text]))
"""


def environment() -> dict[str, str]:
    """For subprocesses: no network, this checkout, no colours."""
    return os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(REPOSITORY), "NO_COLOR": "1", "TERM": "dumb"}


def run_tool(*arguments: str | Path, cwd: Path) -> str:
    """Run a module of this environment; its standard output. A failing run fails the test with all it said."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, check=False, cwd=cwd, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def write_notebook(path: Path, cells: tuple[str, ...]) -> Path:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)
    return path


def outputs_of(path: Path) -> list[list[dict[str, Any]]]:
    """Each code cell's outputs as plain dictionaries."""
    notebook = nbformat.read(path, as_version=4)
    plain: list[list[dict[str, Any]]] = json.loads(json.dumps([cell.outputs for cell in notebook.cells]))
    return plain


@pytest.fixture(scope="session")
def texts() -> tuple[str, str]:
    """What the model says to both prompts, from a plain script."""
    fox, france = json.loads(run_tool("-c", SCRIPT, cwd=REPOSITORY))
    assert fox
    assert france
    return fox, france


@pytest.fixture(scope="session")
def executed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The notebook as `nbconvert --execute` leaves it."""
    folder = tmp_path_factory.mktemp("nbconvert")
    write_notebook(folder / "small.ipynb", CELLS)
    convert = ("-m", "nbconvert", "--to", "notebook", "--execute")
    run_tool(*convert, "small.ipynb", "--output", "executed.ipynb", cwd=folder)
    return folder / "executed.ipynb"
