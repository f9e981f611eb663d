"""What `%%mlxgen` does: the cell's text becomes a request, its answer is shown where the front end can.

live page       a live view; the cell returns at once (with --wait it blocks)
terminal        the cell blocks and the main thread prints
batch tool      the cell blocks and leaves one finished output, the same in every tool
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from mlx_notebook.errors import MlxNotebookError
from mlx_notebook.notebook import cell_rows, execution
from mlx_notebook.notebook.arguments import parse
from mlx_notebook.notebook.blocking import follow, interruptible, print_text, raise_if_unfinished
from mlx_notebook.notebook.find_gateway import find_or_load
from mlx_notebook.notebook.options import GENERATE
from mlx_notebook.notebook.printing import in_one_line, printable, write
from mlx_notebook.notebook.settings import Mode, mode_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from IPython.core.interactiveshell import InteractiveShell

    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.gateway.handle import Handle
    from mlx_notebook.notebook.settings import MlxNotebook

_OURS = ("into", "gateway", "view", "wait", "keep")


def generate(shell: InteractiveShell, settings: MlxNotebook, line: str, cell: str) -> Handle:
    """Submit the cell's text, show it as this execution can, and return the handle.

    Raises:
        UsageError: a wrong option, an empty prompt; nothing was submitted.
        UnsupportedRequest, ValueError, TypeError, OverContext, QueueFull: refused by the gateway at submit.
        RowFailed, Cancelled: in a cell that blocks.
    """
    options = parse(GENERATE, line, shell.user_ns).values
    if not cell.strip():
        raise UsageError("%%mlxgen: there is no prompt: it goes on the lines below the first")
    ours = {name: options.pop(name) for name in _OURS if name in options}
    prompt = _prompt(shell, cell)
    mode = mode_of(shell, settings)
    gateway = find_or_load(ours.get("gateway"), mode)
    with interruptible():
        handle = _submit(gateway, prompt, options)
        # Only now: a run that was refused changes nothing.
        cell_rows.cancel_earlier_runs(execution.current(shell))
        if "into" in ours:
            shell.push({ours["into"]: handle})
        _show(handle, gateway, prompt, mode, ours)
    return handle


def _prompt(shell: InteractiveShell, cell: str) -> str:
    """The cell's text without the line break at its end, which is the editor's and not the prompt's.

    At a terminal a blank line ends the cell: that one is not the prompt's either.
    """
    prompt = cell.removesuffix("\n")
    at_terminal = hasattr(shell, "prompt_for_code")
    return prompt.removesuffix("\n") if at_terminal else prompt


def _submit(gateway: Gateway, prompt: str, options: dict[str, Any]) -> Handle:
    if "stop" in options:
        options["stop"] = _flat(options["stop"])
    try:
        handle: Handle = gateway.submit(prompt, **options)
    except (MlxNotebookError, ValueError, TypeError) as error:
        raise in_one_line(error) from None
    handle.add_done_callback(cell_rows.remember_failure)
    return handle


def _flat(stops: list[object]) -> list[object]:
    """Each `--stop` is a text, or a list of texts that came as `$name`."""
    flat: list[object] = []
    for stop in stops:
        flat.extend(stop if isinstance(stop, list | tuple) else [stop])
    return flat


def _show(handle: Handle, gateway: Gateway, prompt: str, mode: Mode, ours: Mapping[str, Any]) -> None:
    view = ours.get("view", "stream")
    metadata = provenance(handle, gateway)
    if mode is Mode.WIDGET:
        _show_live(handle, prompt, view, title=gateway.model_name, keep=ours.get("keep", False), metadata=metadata)
        if ours.get("wait", False):
            follow(handle)
            raise_if_unfinished(handle)
        return
    if mode is Mode.PRINT and view == "stream":
        print_text(handle)
    else:
        follow(handle)
        _show_finished(handle, prompt, view, mode, title=gateway.model_name, metadata=metadata)
    raise_if_unfinished(handle)


def _show_live(handle: Handle, prompt: str, view: str, *, title: str, keep: bool, metadata: Mapping[str, Any]) -> None:
    if view == "stream":
        from mlx_notebook.notebook.stream_widget import StreamView

        StreamView([handle], title=title, keep=keep, metadata=metadata, prompts=[prompt]).display()
    elif view == "table":
        from mlx_notebook.notebook.table_view import TableView

        TableView([(prompt, handle)], metadata=metadata).display()


def _show_finished(
    handle: Handle, prompt: str, view: str, mode: Mode, *, title: str, metadata: Mapping[str, Any]
) -> None:
    from mlx_notebook.notebook.static_html import frozen_bundle
    from mlx_notebook.notebook.table_view import table_bundle

    if view == "quiet":
        return
    if view == "table":
        data, about = table_bundle([(prompt, handle)], metadata=metadata)
    else:
        data, about = frozen_bundle([handle], title=title, metadata=metadata)
    publish(data, about, mode)


def publish(data: Mapping[str, str], metadata: Mapping[str, Any], mode: Mode) -> None:
    """Show a MIME bundle as the running cell's output, or its plain text in a terminal."""
    if mode is Mode.PRINT:
        write(printable(data["text/plain"]) + "\n")
        return
    from IPython.display import publish_display_data

    publish_display_data(dict(data), dict(metadata))


def provenance(handle: Handle, gateway: Gateway | None) -> dict[str, Any]:
    """What an answer came from, for its output's metadata: only what JSON can carry."""
    about: dict[str, Any] = {"model": handle.model}
    if gateway is not None:
        about |= {"source": gateway.source, "revision": gateway.revision}
    options = {name: value for name, value in handle.options.items() if name != "seed"}
    about |= {"options": options, "seed": handle.options["seed"]}
    plain: dict[str, Any] = json.loads(json.dumps(about, default=repr))
    return plain
