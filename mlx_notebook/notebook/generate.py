"""What `%%mlxgen` does: the cell's text becomes requests, their answers are shown where the front end can.

live page       a live view; the cell returns at once (with --wait it blocks)
terminal        the cell blocks and the main thread prints
batch tool      the cell blocks and leaves one finished output, the same in every tool
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_notebook.notebook import cell_rows, execution
from mlx_notebook.notebook.arguments import parse
from mlx_notebook.notebook.blocking import follow, interruptible, print_text, raise_if_unfinished
from mlx_notebook.notebook.cell_answers import submit_cell
from mlx_notebook.notebook.chat import submit_turn
from mlx_notebook.notebook.find_gateway import find_or_load
from mlx_notebook.notebook.options import GENERATE
from mlx_notebook.notebook.printing import say, write
from mlx_notebook.notebook.prompts import prompts_of
from mlx_notebook.notebook.provenance import provenance
from mlx_notebook.notebook.settings import Mode, mode_of
from mlx_notebook.notebook.static_html import prompt_title
from mlx_notebook.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from IPython.core.interactiveshell import InteractiveShell

    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.gateway.handle import Handle
    from mlx_notebook.gateway.handles import Handles
    from mlx_notebook.notebook.cell_answers import Answers
    from mlx_notebook.notebook.settings import MlxNotebook

_OURS = ("into", "gateway", "view", "wait", "keep", "split", "fill", "chat")


def generate(shell: InteractiveShell, settings: MlxNotebook, line: str, cell: str) -> Handle | Handles:
    """Submit the cell's prompts, show their answers as this execution can, and return the handle or Handles.

    Raises:
        UsageError: a wrong option, an empty prompt, a missing variable; nothing was submitted.
        UnsupportedRequest, ValueError, TypeError, OverContext, QueueFull: refused by the gateway at submit.
        RowFailed, Cancelled: in a cell that blocks.
    """
    options = parse(GENERATE, line, shell.user_ns).values
    ours = {name: options.pop(name) for name in _OURS if name in options}
    variables = shell.user_ns if ours.get("fill") else None
    text = _without_closing_blank_line(shell, cell)
    prompts = prompts_of(GENERATE.name, text, separator=ours.get("split"), variables=variables)
    if "stop" in options:
        options["stop"] = _flat(options["stop"])
    mode = mode_of(shell, settings)
    gateway = find_or_load(ours.get("gateway"), mode)
    with interruptible():
        if "chat" in ours:
            answers = submit_turn(GENERATE.name, ours["chat"], gateway, prompts, options)
        else:
            answers = submit_cell(GENERATE.name, gateway, prompts, options, split="split" in ours)
        # Only now: a run that was refused changes nothing.
        cell_rows.cancel_earlier_runs(execution.current(shell))
        if "into" in ours:
            shell.push({ours["into"]: answers.value})
        _show(answers, gateway, mode, ours)
    return answers.value


def _without_closing_blank_line(shell: InteractiveShell, cell: str) -> str:
    """The cell's text; at a terminal a blank line ends the cell, and is not the prompt's."""
    return cell.removesuffix("\n") if hasattr(shell, "prompt_for_code") else cell


def _flat(stops: list[object]) -> list[object]:
    """Each `--stop` is a text, or a list of texts that came as `$name`."""
    flat: list[object] = []
    for stop in stops:
        flat.extend(stop if isinstance(stop, list | tuple) else [stop])
    return flat


def _show(answers: Answers, gateway: Gateway, mode: Mode, ours: Mapping[str, Any]) -> None:
    view = ours.get("view", "stream")
    metadata = provenance(answers.handles)
    if mode is Mode.WIDGET:
        _show_live(answers, view, title=gateway.model_name, keep=ours.get("keep", False), metadata=metadata)
        if ours.get("wait", False):
            _wait(answers)
        return
    if mode is Mode.PRINT and view == "stream":
        _print(answers)
    else:
        _wait_quietly(answers)
        _show_finished(answers, view, mode, title=gateway.model_name, metadata=metadata)
    _raise_first(answers)


def _print(answers: Answers) -> None:
    """The rows run side by side; a terminal shows them one after the other."""
    for number, (handle, title) in enumerate(zip(answers.handles, answers.titles, strict=True), start=1):
        if len(answers.handles) > 1:
            say(f"{number}. {prompt_title(title)}")
        print_text(handle)


def _wait_quietly(answers: Answers) -> None:
    for handle in answers.handles:
        follow(handle)


def _wait(answers: Answers) -> None:
    _wait_quietly(answers)
    _raise_first(answers)


def _raise_first(answers: Answers) -> None:
    """Raise what the first row that did not finish ended with; the next magic mentions the others."""
    for handle in answers.handles:
        raise_if_unfinished(handle)


def _show_live(answers: Answers, view: str, *, title: str, keep: bool, metadata: Mapping[str, Any]) -> None:
    if view == "stream":
        from mlx_notebook.notebook.stream_widget import StreamView

        StreamView(answers.handles, title=title, keep=keep, metadata=metadata, prompts=answers.titles).display()
    elif view == "table":
        from mlx_notebook.notebook.table_view import TableView

        TableView(_rows_of(answers), metadata=metadata).display()


def _show_finished(answers: Answers, view: str, mode: Mode, *, title: str, metadata: Mapping[str, Any]) -> None:
    from mlx_notebook.notebook.static_html import frozen_bundle
    from mlx_notebook.notebook.table_view import table_bundle

    if view == "quiet":
        return
    if view == "table":
        data, about = table_bundle(_rows_of(answers), metadata=metadata)
    else:
        data, about = frozen_bundle(answers.handles, title=title, metadata=metadata, prompts=answers.titles)
    publish(data, about, mode)


def _rows_of(answers: Answers) -> list[tuple[str, Handle]]:
    return list(zip(answers.titles, answers.handles, strict=True))


def publish(data: Mapping[str, str], metadata: Mapping[str, Any], mode: Mode) -> None:
    """Show a MIME bundle as the running cell's output, or its plain text in a terminal."""
    if mode is Mode.PRINT:
        write(printable(data["text/plain"]) + "\n")
        return
    from IPython.display import publish_display_data

    publish_display_data(dict(data), dict(metadata))
