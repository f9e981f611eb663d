"""One JupyterLab server and a page on it: start, open a notebook, run cells, read outputs.

Every wait is for an event and has no time limit of its own: a machine may be slow. A test that
hangs is seen by its stacks (pytest's faulthandler), a server that dies by its log.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import nbformat

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from playwright.sync_api import Browser, Locator, Page, Playwright

REPOSITORY = pathlib.Path(__file__).parents[2]
ARTEFACTS = REPOSITORY / "tests" / "artefacts"
CHROMIUM = ("/usr/bin/chromium", "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome")
SHOWN = ".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Notebook .jp-Cell"
PANEL = "window.jupyterapp.shell.currentWidget"


class Lab(NamedTuple):
    """A running server: where it is, what opens it, the folder it serves, and where its further kernels are."""

    base: str
    token: str
    root: pathlib.Path
    kernels: pathlib.Path

    def add_kernel(self, name: str, first: pathlib.Path) -> None:
        """A kernel of this interpreter that finds packages in `first` before the environment's own."""
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        env = {"PYTHONPATH": f"{first}{os.pathsep}{REPOSITORY}"}
        spec = {"argv": argv, "display_name": name, "language": "python", "env": env}
        (self.kernels / name).mkdir(parents=True)
        (self.kernels / name / "kernel.json").write_text(json.dumps(spec))


@cache
def chromium_path() -> str | None:
    """The browser that the tests drive, or None: the system's, else the one that playwright has installed."""
    known = next((path for path in CHROMIUM if pathlib.Path(path).exists()), None)
    return known or _playwrights_own()


def _playwrights_own() -> str | None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if pathlib.Path(path).exists() else None


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def _write_settings(folder: pathlib.Path, settings: Mapping[str, Mapping[str, Any]]) -> None:
    quiet = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}
    for plugin, values in {**quiet, **settings}.items():
        package, name = plugin.split(":")
        path = folder / package / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))


def _environment(scratch: pathlib.Path) -> dict[str, str]:
    """Nothing of the user's own Jupyter gets in, and the kernels find this checkout."""
    return os.environ | {
        "MLX_NOTEBOOK_HELLO_S": "20",  # a loaded machine may keep a page busy for long; it is there all the same
        "JUPYTER_CONFIG_DIR": str(scratch / "config"),
        "JUPYTER_DATA_DIR": str(scratch / "data"),
        "JUPYTER_RUNTIME_DIR": str(scratch / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(scratch / "user-settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(scratch / "workspaces"),
        "IPYTHONDIR": str(scratch / "ipython"),
        "PYTHONPATH": str(REPOSITORY),
        "HF_HUB_OFFLINE": "1",
    }


@contextlib.contextmanager
def lab_server(root: pathlib.Path, *, settings: Mapping[str, Mapping[str, Any]] | None = None) -> Iterator[Lab]:
    """A JupyterLab over `root`, with further settings by plugin id."""
    with tempfile.TemporaryDirectory(prefix="labcfg-", ignore_cleanup_errors=True) as folder:
        scratch = pathlib.Path(folder)
        _write_settings(scratch / "user-settings", settings or {})
        base = f"http://127.0.0.1:{_free_port()}"
        lab = Lab(base, secrets.token_hex(8), root, kernels=scratch / "data" / "kernels")
        log = scratch / "lab.log"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                _command(lab), stdout=sink, stderr=subprocess.STDOUT, env=_environment(scratch), start_new_session=True
            )
        try:
            _wait_until_ready(lab, process, log)
            yield lab
        finally:
            process.terminate()  # the server shuts its kernels down
            process.wait()


def _command(lab: Lab) -> list[str]:
    return [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"),
        f"--ServerApp.port={lab.base.rsplit(':', 1)[1]}",
        "--ServerApp.port_retries=0",
        "--ServerApp.ip=127.0.0.1",
        f"--IdentityProvider.token={lab.token}",
        f"--ServerApp.root_dir={lab.root}",
        "--LabApp.expose_app_in_browser=True",
        "--LabApp.extension_manager=readonly",
    ]


def _wait_until_ready(lab: Lab, process: subprocess.Popen[bytes], log: pathlib.Path) -> None:
    request = urllib.request.Request(lab.base + "/api/status", headers={"Authorization": f"token {lab.token}"})  # noqa: S310 - our own server
    while True:
        if process.poll() is not None:
            raise RuntimeError("JupyterLab ended:\n" + log.read_text()[-3000:])
        try:
            urllib.request.urlopen(request).read()  # noqa: S310 - our own server
        except OSError:
            time.sleep(0.1)
        else:
            return


def launch(playwright: Playwright) -> Browser:
    """A headless Chromium that keeps to itself."""
    return playwright.chromium.launch(
        executable_path=chromium_path(),
        headless=True,
        args=[
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
        ],
    )


def write_notebook(path: pathlib.Path, cells: Sequence[str], kernel: str = "python3") -> None:
    """A notebook of code cells."""
    notebook = nbformat.v4.new_notebook()
    notebook.metadata["kernelspec"] = {"name": kernel, "display_name": kernel, "language": "python"}
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in cells]
    nbformat.write(notebook, path)


def open_notebook(page: Page, lab: Lab, name: str) -> None:
    """Open it and wait until its kernel answers."""
    page.goto(f"{lab.base}/lab/tree/{name}?token={lab.token}&reset", wait_until="domcontentloaded")
    wait_ready(page)


def wait_ready(page: Page) -> None:
    """The kernel's own status, not the indicator's style: that one reads idle before a kernel is there."""
    wait_open(page)
    page.wait_for_function(
        f"() => {{ const s = {PANEL}?.sessionContext; const k = s?.session?.kernel;"
        " return s?.isReady && k && k.status === 'idle' && k.connectionStatus === 'connected'; }"
    )
    page.evaluate(f"async () => {{ await {PANEL}.sessionContext.session.kernel.info; }}")


def wait_open(page: Page) -> None:
    """Wait until the notebook is on the page, whatever its kernel does."""
    # As one wait, which outlives a navigation: a second tab of a workspace is sent on to a workspace of its own.
    page.wait_for_function("() => window.jupyterapp?.started.then(() => true)")
    page.wait_for_selector(SHOWN)


def command(page: Page, name: str) -> None:
    """Run one of the application's commands and wait for it."""
    page.evaluate("(name) => window.jupyterapp.commands.execute(name)", name)


def run_cell(page: Page, index: int) -> None:
    """Run a cell; does not wait for its end."""
    page.evaluate(
        f"""async (index) => {{
            const notebook = {PANEL}.content;
            notebook.deselectAll();
            notebook.activeCellIndex = index;
            const began = new Promise((resolve) => {{
                const cell = notebook.widgets[index].model;
                const look = () => cell.executionState !== 'idle' || cell.executionCount !== null
                    ? resolve() : setTimeout(look, 10);
                look();
            }});
            window.jupyterapp.commands.execute('notebook:run-cell');  // not awaited: it ends with the cell
            await began;
        }}""",
        index,
    )


def wait_cell(page: Page, index: int) -> None:
    """Wait until the cell's reply is in."""
    page.wait_for_function(
        f"(i) => {{ const c = {PANEL}.content.widgets[i].model;"
        " return c.executionState === 'idle' && c.executionCount !== null; }",
        arg=index,
    )


def run_and_wait(page: Page, index: int) -> None:
    """Run a cell to its end."""
    run_cell(page, index)
    wait_cell(page, index)


def cell_count(page: Page) -> int:
    """How many cells the notebook has."""
    count: int = page.evaluate(f"() => {PANEL}.content.widgets.length")
    return count


def output_area(page: Page, index: int) -> Locator:
    """Where a cell's outputs are."""
    return page.locator(SHOWN).nth(index).locator(".jp-Cell-outputArea")


def outputs(page: Page, index: int) -> list[dict[str, Any]]:
    """A cell's outputs as they would be saved."""
    found: list[dict[str, Any]] = page.evaluate(f"(i) => {PANEL}.content.widgets[i].model.outputs.toJSON()", index)
    return found


def wait_for_output(page: Page, index: int, mime: str) -> dict[str, Any]:
    """Wait until the cell's first output has this MIME type and no widget; gives that output."""
    page.wait_for_function(
        f"([i, mime]) => {{ const o = {PANEL}.content.widgets[i].model.outputs.toJSON()[0];"
        " return o?.data && mime in o.data && !('application/vnd.jupyter.widget-view+json' in o.data); }",
        arg=[index, mime],
    )
    return outputs(page, index)[0]


def save(page: Page) -> None:
    """Save the notebook."""
    command(page, "docmanager:save")


def screenshot(page: Page, name: str) -> pathlib.Path:
    """Keep a picture for whoever looks at the artefacts."""
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    path = ARTEFACTS / f"{name}.png"
    page.screenshot(path=str(path))
    return path
