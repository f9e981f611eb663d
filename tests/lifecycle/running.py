"""Runs one process to its end and says what was wrong with that end; for the tests and for the recorded full run.

Clean is: status 0, nothing on the standard error, no thread of ours left behind the last act, no hang.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_client.manager import KernelManager

from tests.lifecycle.child import EXITS, FORKS, THREADS

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[2]

HANG_S = 600
"""A process that has not ended by then hangs. Not a limit on its speed: the work takes seconds."""

NOBODY_LEFT = f"{THREADS} []"


@dataclass(frozen=True)
class End:
    """How one process ended; `problems` is empty if it was clean."""

    what: str
    problems: tuple[str, ...]


def environment() -> dict[str, str]:
    """For child processes: this checkout, no network, every library's own thread warnings as they are."""
    return os.environ | {"PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"}


def run_child(mode: str) -> End:
    """One run of `tests.lifecycle.child`."""
    command = [sys.executable, "-W", "error::RuntimeWarning", "-m", "tests.lifecycle.child", mode]
    try:
        done = subprocess.run(
            command, env=environment(), cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=HANG_S
        )
    except subprocess.TimeoutExpired as error:
        return End(mode, (f"hangs; it had said {error.stdout!r} {error.stderr!r}",))
    problems = []
    if done.returncode != 0:
        problems.append(f"status {done.returncode}")
    if done.stderr:
        problems.append(f"standard error: {done.stderr[-2000:]}")
    lines = done.stdout.splitlines()
    if "READY" not in lines:
        problems.append("it did not get ready")
    if any(line != NOBODY_LEFT for line in lines if line.startswith(THREADS)) or lines[-1:] != [NOBODY_LEFT]:
        problems.append(f"threads: {done.stdout[-500:]!r}")
    return End(mode, tuple(problems))


# ---------------------------------------------------------------- kernels

LIVE = """
import atexit, sys
sys.path.insert(0, {repository!r})
def last_act(path={path!r}):
    import threading
    with open(path, "a") as file:
        print({threads!r}, [t.name for t in threading.enumerate() if t.name.startswith("mlx-notebook")], file=file)
atexit.register(last_act)
%load_ext mlx_notebook
from tests.lifecycle.child import live_gateway, submit, wait_till_it_writes
gateway = live_gateway()
handles = submit(gateway, 20)
wait_till_it_writes(handles[0])
"""

RELOAD = """
engine = gateway._engine
%reload_ext mlx_notebook
assert gateway.closed and engine._ended.is_set()
assert all(handle.done() for handle in handles)
assert not [t.name for t in __import__("threading").enumerate() if t.name.startswith("mlx-notebook engine")]
%mlxstatus
gateway = live_gateway()
handles = submit(gateway, 20)
wait_till_it_writes(handles[0])
"""


class Session:
    """A kernel with a live gateway in it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._standard_error = (folder / "stderr").open("w+")
        # By itself it sends a signal after half of five seconds, which a busy machine takes to unload libraries.
        self._manager = KernelManager(shutdown_wait_time=HANG_S)
        self._manager.start_kernel(env=environment(), stderr=self._standard_error)
        self._process: Any = self._manager.provisioner.process  # type: ignore[union-attr]

    def run(self, code: str) -> list[str]:
        """Execute a cell; what was wrong."""
        client = self._manager.blocking_client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=HANG_S)
            reply = client.execute_interactive(code, timeout=HANG_S, output_hook=lambda _message: None)
        finally:
            client.stop_channels()
        content = reply["content"]
        return [] if content["status"] == "ok" else [f"{content['ename']}: {content['evalue']}"]

    def start_a_gateway(self, name: str) -> list[str]:
        """A live one, whose process leaves its last words under `name`."""
        path = str(self._folder / name)
        return self.run(LIVE.format(repository=str(REPOSITORY), path=path, threads=THREADS))

    def restart(self) -> list[str]:
        """Ask the kernel to restart, as the button does; what was wrong with the old process's end."""
        before = self._process
        self._manager.restart_kernel(now=False)
        self._process = self._manager.provisioner.process  # type: ignore[union-attr]
        return self._end_of(before, "restart")

    def shut_down(self) -> list[str]:
        """Ask the kernel to end."""
        self._manager.shutdown_kernel(now=False)
        problems = self._end_of(self._process, "shutdown")
        self._standard_error.close()
        return problems

    def _end_of(self, process: Any, name: str) -> list[str]:
        problems = []
        if process.returncode != 0:  # the manager kills one that does not go by itself
            problems.append(f"status {process.returncode}")
        last_words = self._folder / name
        words = last_words.read_text(encoding="utf-8").splitlines() if last_words.exists() else []
        if words != [NOBODY_LEFT]:
            problems.append(f"threads: {words}")
        self._standard_error.seek(0)
        said = self._standard_error.read()
        if "terminate called" in said or "Fatal Python error" in said or "Traceback" in said:
            problems.append(f"standard error: {said[-2000:]}")
        return problems


def run_kernel() -> Iterator[End]:
    """One kernel's life: a live gateway, %reload_ext, a live gateway, restart, a live gateway, shutdown."""
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Path(folder))
        begun = session.start_a_gateway("restart")
        yield End("kernel_reload_ext", (*begun, *session.run(RELOAD)))
        yield End("kernel_restart", tuple(session.restart()))
        begun = session.start_a_gateway("shutdown")
        yield End("kernel_shutdown", (*begun, *session.shut_down()))


MODES = (*EXITS, *FORKS)
