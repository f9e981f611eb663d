"""The wheel and the source archive hold what a user needs, and neither asks for Node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from email.message import Message

CHECKOUT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.slow


def git_files(folder: str) -> set[str]:
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", folder],
        capture_output=True,
        text=True,
        check=True,
        cwd=CHECKOUT,
    )
    return {line for line in done.stdout.splitlines() if (CHECKOUT / line).is_file()}


def build(kind: str, source: Path, out: Path) -> Path:
    """Build without fetching anything and with no Node in reach."""
    bare = out / "bin"
    bare.mkdir(parents=True)
    environment = {**os.environ, "PATH": str(bare)}
    assert shutil.which("node", path=environment["PATH"]) is None
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", str(out), str(source)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = [path for path in out.iterdir() if path.is_file()]
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", CHECKOUT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def unpacked_sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    archive = build("sdist", CHECKOUT, folder)
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "unpacked", filter="data")
    (top,) = (folder / "unpacked").iterdir()
    return top


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as opened:
        return {name for name in opened.namelist() if ".dist-info/" not in name}


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as opened:
        (path,) = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        return HeaderParser().parsestr(opened.read(path).decode())


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    assert names(wheel) == git_files("mlx_notebook")


def test_the_wheel_holds_bundle_and_type_marker(wheel: Path) -> None:
    held = names(wheel)
    assert "mlx_notebook/py.typed" in held
    bundles = {name for name in held if name.startswith("mlx_notebook/static/") and name.endswith(".js")}
    assert bundles
    with zipfile.ZipFile(wheel) as opened:
        for bundle in bundles:
            assert 0 < opened.getinfo(bundle).file_size < 60_000


def test_the_bundle_fetches_no_script(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        for name in names(wheel):
            if name.startswith("mlx_notebook/static/"):
                text = opened.read(name).decode()
                assert "https://" not in text.replace("https://www.w3.org/", ""), name
                assert "sourceMappingURL" not in text, name


def test_the_source_archive_gives_the_same_wheel(unpacked_sdist: Path, wheel: Path, tmp_path: Path) -> None:
    again = build("wheel", unpacked_sdist, tmp_path)
    assert names(again) == names(wheel)
    with zipfile.ZipFile(again) as one, zipfile.ZipFile(wheel) as other:
        assert {name: one.read(name) for name in names(again)} == {name: other.read(name) for name in names(wheel)}


def test_the_source_archive_holds_tests_docs_and_widget_sources(unpacked_sdist: Path) -> None:
    expected = ["README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "tests/test_package.py", "js/package.json"]
    expected += ["notebooks/01_first_cell.ipynb", "docs/design.md", "scripts/first", "benchmarks/harness.py"]
    assert [name for name in expected if not (unpacked_sdist / name).is_file()] == []
    assert not list(unpacked_sdist.rglob("node_modules"))


def test_the_wheel_runs_from_where_it_is(wheel: Path, tmp_path: Path) -> None:
    """Unpacked away from the checkout: the bundle and the version are found inside it."""
    unpacked = tmp_path / "site"
    with zipfile.ZipFile(wheel) as opened:
        opened.extractall(unpacked)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import mlx_notebook\n"
        "from importlib.resources import files\n"
        "print(mlx_notebook.__file__)\n"
        "print(sum(entry.name.endswith('.js') for entry in (files(mlx_notebook) / 'static').iterdir()))\n"
    )
    command = [sys.executable, "-W", "error", "-P", "-c", code, str(unpacked)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    where, bundles = done.stdout.split()
    assert Path(where).is_relative_to(unpacked)
    assert int(bundles) > 0


def test_the_metadata_names_python_extras_and_licence(wheel: Path) -> None:
    said = metadata(wheel)
    assert said["Requires-Python"] == ">=3.11"
    assert said["License-Expression"] == "MIT"
    assert {"cpu", "cuda", "test", "docs"} <= set(said.get_all("Provides-Extra", []))


def test_a_backend_is_asked_for_on_linux_only_and_mlx_not_on_an_intel_mac(wheel: Path) -> None:
    from packaging.requirements import Requirement

    wanted = [Requirement(text) for text in metadata(wheel).get_all("Requires-Dist", [])]

    def asked(system: str, machine: str, extra: str) -> set[str]:
        where = {"sys_platform": system, "platform_machine": machine, "extra": extra}
        return {
            f"{req.name}{sorted(req.extras) or ''}"
            for req in wanted
            if req.marker is None or req.marker.evaluate(where)
        }

    assert {"mlx", "mlx-lm"} <= asked("linux", "x86_64", "") & asked("darwin", "arm64", "")
    assert not {"mlx", "mlx-lm"} & asked("darwin", "x86_64", "")
    assert "mlx['cpu']" in asked("linux", "aarch64", "cpu")
    assert "mlx['cuda13']" in asked("linux", "x86_64", "cuda")
    assert not {"mlx['cpu']", "mlx['cuda13']"} & (asked("darwin", "arm64", "cpu") | asked("darwin", "arm64", "cuda"))


def test_the_scripts_are_valid_bash_and_can_be_run() -> None:
    scripts = [path for path in (CHECKOUT / "scripts").iterdir() if path.suffix != ".py"]
    assert scripts
    for script in [*scripts, CHECKOUT / ".ci" / "run"]:
        subprocess.run(["bash", "-n", str(script)], check=True)
        assert script.suffix == ".sh" or os.access(script, os.X_OK), f"{script} cannot be run"
