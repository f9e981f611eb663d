"""What the documents say exists: files behind links, options, names, and code that compiles."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import mlx_notebook

CHECKOUT = Path(__file__).resolve().parent.parent
DOCUMENTS = [*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").glob("*.md")]
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)


def ids(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_links_lead_somewhere(document: Path) -> None:
    targets = [target.partition("#")[0] for target in LINK.findall(document.read_text(encoding="utf-8"))]
    local = [target for target in targets if target and not target.startswith("https://")]
    assert [target for target in local if not (document.parent / target).exists()] == []


def test_the_page_of_pictures_has_every_picture_of_the_views() -> None:
    page = (CHECKOUT / "docs" / "views.md").read_text(encoding="utf-8")
    shown = {target for target in LINK.findall(page) if target.endswith(".png")}
    assert shown == {f"images/views/{file.name}" for file in (CHECKOUT / "docs/images/views").iterdir()}


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_python_in_the_documents_compiles(document: Path) -> None:
    for block in PYTHON.findall(document.read_text(encoding="utf-8")):
        compile(block, str(document), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("document", DOCUMENTS, ids=ids)
def test_names_of_the_package_in_the_documents_are_exported(document: Path) -> None:
    named = set(re.findall(r"\bmn\.([A-Za-z_]+)", document.read_text(encoding="utf-8")))
    assert named <= set(mlx_notebook.__all__)


def test_the_page_of_the_cell_has_every_option_and_magic() -> None:
    from mlx_notebook.notebook.options import GENERATE, MAGICS

    page = (CHECKOUT / "docs" / "cell.md").read_text(encoding="utf-8")
    _, _, of_the_cell_magic = page.partition("## `%%mlxgen`")
    assert {option.flag for option in GENERATE.options} == set(re.findall(r"--[a-z][a-z-]*", of_the_cell_magic))
    assert {magic.name for magic in MAGICS} <= set(re.findall(r"%+mlx[a-z]+", page))


def test_options_in_the_readme_exist() -> None:
    from mlx_notebook.notebook.options import GENERATE

    cells = re.findall(r"^%%mlxgen .*$", (CHECKOUT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert cells
    for cell in cells:
        assert set(re.findall(r"--[a-z][a-z-]*", cell)) <= {option.flag for option in GENERATE.options}


def test_the_scripts_that_the_documents_name_are_there() -> None:
    for document in DOCUMENTS:
        for name in re.findall(r"(?:^|[\s`./])(scripts/[a-z_.]+)", document.read_text(encoding="utf-8")):
            assert (CHECKOUT / name).is_file(), f"{document.name} names {name}"
