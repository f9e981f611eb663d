"""Prints what a notebook's cells wrote, as a terminal can show it: `show_outputs.py NOTEBOOK`."""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat


def main(path: Path) -> None:
    """Print the source and the text of the outputs of every code cell that has any."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        texts = [text for output in cell.outputs if (text := _text(output))]
        if texts:
            print(f"\n[{cell.execution_count}] " + cell.source.replace("\n", "\n    "))
            print("".join(texts).rstrip())


def _text(output: nbformat.NotebookNode) -> str:
    if output.output_type == "stream":
        return str(output.text)
    if output.output_type in {"display_data", "execute_result"}:
        return str(output.data.get("text/plain", "")) + "\n"
    return ""


if __name__ == "__main__":
    main(Path(sys.argv[1]))
