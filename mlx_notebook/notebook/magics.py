"""The magics: each parses its line and makes one call. What they do is in the modules beside this one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class, no_var_expand

from mlx_notebook.gateway.registry import registry
from mlx_notebook.notebook import cell_rows, execution
from mlx_notebook.notebook.arguments import parse
from mlx_notebook.notebook.chat import chat_command
from mlx_notebook.notebook.find_gateway import meant
from mlx_notebook.notebook.generate import generate, publish
from mlx_notebook.notebook.options import (
    CANCEL,
    CHAT,
    DASH,
    GENERATE,
    LOAD,
    MAGICS,
    MODELS,
    SHOW,
    STATUS,
    TRACE,
    UNLOAD,
    WHY,
    help_text,
)
from mlx_notebook.notebook.printing import numbers, say
from mlx_notebook.notebook.settings import MlxNotebook, mode_of
from mlx_notebook.notebook.show import kept_handle, show_handle
from mlx_notebook.notebook.show_run import open_gateway, show_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import InteractiveShell

    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.gateway.handle import Handle
    from mlx_notebook.gateway.handles import Handles
    from mlx_notebook.notebook.arguments import Magic

NAMES = tuple((("cell" if magic.name.startswith("%%") else "line"), magic.name.lstrip("%")) for magic in MAGICS)
"""(kind, name) of each, as IPython keeps them."""


def _helped_by(magic: Magic) -> Callable[[Callable[..., object]], Callable[..., object]]:
    def document(function: Callable[..., object]) -> Callable[..., object]:
        function.__doc__ = help_text(magic)
        return function

    return document


@magics_class
class MlxMagics(Magics):
    """The magics of one shell."""

    shell: InteractiveShell

    def __init__(self, shell: InteractiveShell, settings: MlxNotebook) -> None:
        super().__init__(shell)
        self._settings = settings

    @no_var_expand
    @cell_magic
    @_helped_by(GENERATE)
    def mlxgen(self, line: str, cell: str) -> Handle | Handles | None:
        cell_rows.mention_failures()
        return self._keep_quietly(generate(self.shell, self._settings, line, cell))

    @no_var_expand
    @line_magic
    @_helped_by(LOAD)
    def mlxload(self, line: str) -> None:
        from mlx_notebook.notebook.loading import load_model

        cell_rows.mention_failures()
        parsed = parse(LOAD, line, self.shell.user_ns)
        into = parsed.values.pop("into", None)
        gateway = load_model(parsed.words[0], parsed.values, mode_of(self.shell, self._settings))
        if into is not None:
            self.shell.push({into: gateway})

    @no_var_expand
    @line_magic
    @_helped_by(STATUS)
    def mlxstatus(self, line: str) -> None:
        from mlx_notebook.notebook.status import status_bundle

        cell_rows.mention_failures()
        parse(STATUS, line, {})
        publish(status_bundle(), {}, mode_of(self.shell, self._settings))

    @no_var_expand
    @line_magic
    @_helped_by(MODELS)
    def mlxmodels(self, line: str) -> None:
        from mlx_notebook.notebook.status import models_bundle

        cell_rows.mention_failures()
        parse(MODELS, line, {})
        publish(models_bundle(), {}, mode_of(self.shell, self._settings))

    @no_var_expand
    @line_magic
    @_helped_by(SHOW)
    def mlxshow(self, line: str) -> None:
        cell_rows.mention_failures()
        (word,) = parse(SHOW, line, self.shell.user_ns).words
        show_handle(self.shell, self._settings, kept_handle(SHOW.name, word))

    @no_var_expand
    @line_magic
    @_helped_by(CANCEL)
    def mlxcancel(self, line: str) -> None:
        cell_rows.mention_failures()
        words = parse(CANCEL, line, self.shell.user_ns).words
        meant_rows = _meant_rows(words[0] if words else None)
        cancelled = cell_rows.cancel(meant_rows)
        if cancelled:
            say(f"Cancelled {numbers(cancelled)}.")
        elif meant_rows:
            say(f"Nothing to cancel: {numbers(meant_rows)} {'is' if len(meant_rows) == 1 else 'are'} over already.")
        else:
            say("Nothing to cancel.")
        cell_rows.say_running([handle for handle in registry.live_handles() if handle not in cancelled])

    @no_var_expand
    @line_magic
    @_helped_by(CHAT)
    def mlxchat(self, line: str) -> None:
        cell_rows.mention_failures()
        parsed = parse(CHAT, line, {})
        exported: dict[str, object] = {}
        chat_command(CHAT.name, parsed.words[0] if parsed.words else None, parsed.values, exported)
        self.shell.push(exported)

    @no_var_expand
    @line_magic
    @_helped_by(DASH)
    def mlxdash(self, line: str) -> None:
        cell_rows.mention_failures()
        words = parse(DASH, line, self.shell.user_ns).words
        open_gateway(DASH.name, words[0] if words else None).dashboard().display()

    @no_var_expand
    @line_magic
    @_helped_by(TRACE)
    def mlxtrace(self, line: str) -> None:
        cell_rows.mention_failures()
        parsed = parse(TRACE, line, self.shell.user_ns)
        show_trace(parsed.words[0] if parsed.words else None, parsed.values)

    @no_var_expand
    @line_magic
    @_helped_by(WHY)
    def mlxwhy(self, line: str) -> None:
        from mlx_notebook.notebook.why import why_bundle

        cell_rows.mention_failures()
        words = parse(WHY, line, self.shell.user_ns).words
        handle = kept_handle(WHY.name, words[0]) if words else registry.last_handle()
        if handle is None:
            raise UsageError(f"{WHY.name}: nothing was submitted yet")
        publish(why_bundle(handle), {}, mode_of(self.shell, self._settings))

    @no_var_expand
    @line_magic
    @_helped_by(UNLOAD)
    def mlxunload(self, line: str) -> None:
        cell_rows.mention_failures()
        words = parse(UNLOAD, line, self.shell.user_ns).words
        gateway = meant(UNLOAD.name, words[0]) if words else registry.current()
        if gateway is None:
            raise UsageError(f"{UNLOAD.name}: no model is loaded")
        before = registry.live_handles()
        gateway.close()
        ended = [handle for handle in before if handle.done()]
        say(f"{gateway.name} is closed{f'; {numbers(ended)} ended with it' if ended else ''}.")
        _say_current(registry.current())

    def _keep_quietly(self, handle: Handle | Handles) -> Handle | Handles | None:
        """Bind `_` and `Out[n]` where this magic is the whole cell: its view is its output, the repr would be a second.

        Called from Python code (`run_cell_magic`), the handle is the value.
        """
        if not execution.raw_cell(self.shell).lstrip().startswith(GENERATE.name):
            return handle
        hook = self.shell.displayhook
        hook.update_user_ns(handle)
        hook.fill_exec_result(handle)
        return None


def _meant_rows(word: object) -> list[Handle]:
    """The handles that an argument of `%mlxcancel` means."""
    live = registry.live_handles()
    if word == "all":
        return live
    if word is not None:
        return [kept_handle(CANCEL.name, word)]
    last = registry.last_handle()
    if last is None:
        raise UsageError(f"{CANCEL.name}: nothing was submitted yet")
    return [handle for handle in live if handle is last or (last.execution and handle.execution == last.execution)]


def _say_current(current: Gateway | None) -> None:
    if current is not None:
        say(f"Current is now {current.name}.")
