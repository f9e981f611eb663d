"""What importing costs and which way it points: light at the top, one way between rooms, names that hold."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import mlx_notebook

PACKAGE = Path(mlx_notebook.__file__).parent
CHECKOUT = PACKAGE.parent

HEAVY = {
    "IPython",
    "anywidget",
    "gguf",
    "huggingface_hub",
    "ipykernel",
    "ipywidgets",
    "jinja2",
    "llguidance",
    "matplotlib",
    "mlx",
    "mlx_lm",
    "numpy",
    "pandas",
    "pydantic",
    "tokenizers",
    "traitlets",
    "transformers",
}

# Modules that belong to no room: any may import them, and they import nothing of ours at run time.
LEAVES = {"bell", "errors", "failure", "terminal"}

# Room -> the rooms that it may import.
MAY_IMPORT = {
    "core": set[str](),
    "trace": {"core"},
    "models": {"core"},
    "engine": {"core", "models", "trace"},
    "simulate": {"core"},
    "gateway": {"core", "engine", "models", "trace"},
    "plots": {"core", "trace"},
    "notebook": {"core", "gateway", "models", "plots", "trace"},
}

# The names of the public interface, whatever else is exported.
PUBLIC = """
Cancelled Gateway GatewayClosed GatewayDead GrammarError Handle MlxNotebookError ModelLoadError ModelNotFound
OverBudget OverContext Placement PlacementMismatch QueueFull Reason Result RowFailed UnsupportedRequest as_completed
current doctor gateways generate get last models submit wait
"""

NOT_FOR_CORE = {"mlx", "mlx_lm", "threading", "asyncio", "time", "datetime", "IPython", "socket", "subprocess", "numpy"}


def modules_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nimport json\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=CHECKOUT)
    return set(json.loads(done.stdout.splitlines()[-1]))


def sources() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[tuple[str, int]]:
    """Every module that the file names in an import, absolute, with its line; relative ones resolved."""
    package = path.relative_to(CHECKOUT).parent.parts
    found: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from mlx_notebook import core` names a room too.
            found += [(f"{module}.{alias.name}", node.lineno) for alias in node.names]
    return found


def test_importing_the_package_imports_nothing_heavy() -> None:
    loaded = {name.partition(".")[0] for name in modules_after("import mlx_notebook")}
    assert "mlx_notebook" in loaded
    assert not loaded & HEAVY


def test_the_list_of_heavy_modules_holds_names_that_exist() -> None:
    """A misspelt name above would never be found loaded, and the test would say nothing."""
    from importlib.util import find_spec

    assert {name for name in HEAVY if find_spec(name) is None} == set()


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    room = room_of(path)
    allowed = MAY_IMPORT[room] | LEAVES | {room}
    wrong = []
    for name, line in imports(path):
        parts = name.split(".")
        if parts[0] == "mlx_notebook" and len(parts) > 1 and parts[1] not in allowed:
            wrong.append(f"{path.name}:{line} imports {name}")
    assert not wrong


@pytest.mark.parametrize("name", sorted(LEAVES))
def test_a_module_without_a_room_brings_none_in(name: str) -> None:
    ours = {loaded for loaded in modules_after(f"import mlx_notebook.{name}") if loaded.startswith("mlx_notebook.")}
    assert ours <= {f"mlx_notebook.{leaf}" for leaf in LEAVES}


@pytest.mark.parametrize("path", [p for p in sources() if room_of(p) == "core"], ids=lambda path: path.name)
def test_core_touches_no_clock_thread_device_or_notebook(path: Path) -> None:
    assert not {name.partition(".")[0] for name, _ in imports(path)} & NOT_FOR_CORE


def test_imports_of_a_room_are_seen_in_every_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above is only as good as `imports`."""
    monkeypatch.setattr(sys.modules[__name__], "CHECKOUT", tmp_path)
    path = tmp_path / "mlx_notebook" / "core" / "sample.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import mlx_notebook.gateway\n"
        "from mlx_notebook import engine\n"
        "from ..notebook.magics import load\n"
        "from . import rows\n"
        "def late():\n"
        "    from mlx_notebook.models.blas import preload\n"
    )
    rooms = [name.split(".")[1] for name, _ in imports(path)]
    assert sorted(rooms) == ["core", "engine", "gateway", "models", "notebook"]


def test_exported_names_are_sorted_and_there() -> None:
    assert mlx_notebook.__all__ == sorted(mlx_notebook.__all__)
    assert len(set(mlx_notebook.__all__)) == len(mlx_notebook.__all__)
    code = "import mlx_notebook as mn\nfor name in mn.__all__: getattr(mn, name)\nfrom mlx_notebook import *"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, cwd=CHECKOUT)


@pytest.mark.parametrize("name", PUBLIC.split())
def test_public_names_are_exported(name: str) -> None:
    assert name in mlx_notebook.__all__


@pytest.mark.parametrize("folder", ["mlx_notebook", "tests", "benchmarks", "scripts", "js"])
def test_no_file_is_longer_than_500_lines(folder: str) -> None:
    files = [
        path
        for suffix in ("py", "ts")
        for path in (CHECKOUT / folder).rglob(f"*.{suffix}")
        if "node_modules" not in path.parts
    ]
    lengths = {str(path.relative_to(CHECKOUT)): len(path.read_text(encoding="utf-8").splitlines()) for path in files}
    assert {name: length for name, length in lengths.items() if length > 500} == {}
