"""Tab on a magic's line: its options, and for an option its values.

One matcher on the shell's completer; it answers only on lines that begin with one of our magics, and
unloading takes it away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython.core.completer import SimpleCompletion, context_matcher

from mlx_notebook.gateway.chats import chats
from mlx_notebook.gateway.registry import registry
from mlx_notebook.notebook.options import MAGICS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from IPython.core.completer import CompletionContext, SimpleMatcherResult
    from IPython.core.interactiveshell import InteractiveShell

    from mlx_notebook.notebook.arguments import Magic, Option


class Completion:
    """The matcher of one shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._matcher: Callable[[CompletionContext], SimpleMatcherResult] | None = None

    def install(self) -> None:
        """Complete our magics from now on; again does nothing."""
        if self._matcher is None:

            @context_matcher()  # type: ignore[untyped-decorator]
            def mlx_notebook_matcher(context: CompletionContext) -> SimpleMatcherResult:
                return self._match(context)

            self._matcher = mlx_notebook_matcher
            self._shell.Completer.custom_matchers.append(mlx_notebook_matcher)

    def remove(self) -> None:
        """Leave the completer as it was."""
        if self._matcher is not None and self._matcher in self._shell.Completer.custom_matchers:
            self._shell.Completer.custom_matchers.remove(self._matcher)
        self._matcher = None

    def _match(self, context: CompletionContext) -> SimpleMatcherResult:
        words = complete(context.text_until_cursor, context.token, self._shell.user_ns)
        if words is None:
            return {"completions": []}
        return {
            "completions": [SimpleCompletion(text=word, type="param") for word in words],
            "suppress": True,
            "ordered": True,
        }


def complete(line: str, token: str, variables: Mapping[str, object]) -> list[str] | None:
    """What could replace `token`, the piece before the cursor that `line` ends with; None: not one of our lines."""
    stripped = line.lstrip()
    magic = next((magic for magic in MAGICS if stripped.startswith(magic.name + " ")), None)
    if magic is None:
        return None
    before = stripped[: len(stripped) - len(token)]
    return [word for word in _candidates(magic, before, token, variables) if word.startswith(token)]


def _candidates(magic: Magic, before: str, token: str, variables: Mapping[str, object]) -> Iterable[str]:
    if before.endswith("$"):
        return sorted(name for name in variables if not name.startswith("_"))
    words = before.split()
    attached = words[-1].partition("=") if before.endswith("=") else None
    flag = attached[0] if attached else words[-1]
    option = magic.option(flag)
    takes_value = option is not None and (attached is not None or not option.switch)
    if token.startswith("-") and not attached:
        return _unused(magic, words)
    if option is not None and takes_value:
        return _values(option, variables)
    if len(words) == 1 and magic.word_completes:
        return _names(magic.word_completes, variables)
    return _unused(magic, words)


def _unused(magic: Magic, words: Iterable[str]) -> list[str]:
    given = {word.partition("=")[0] for word in words}
    return [option.flag for option in magic.options if option.repeat or option.flag not in given]


def _values(option: Option, variables: Mapping[str, object]) -> Iterable[str]:
    return option.choices or _names(option.completes, variables)


def _names(kind: str, variables: Mapping[str, object]) -> list[str]:
    if kind == "variable":
        return sorted(name for name, value in variables.items() if not name.startswith("_") and not callable(value))
    if kind in _SOURCES:
        return _SOURCES[kind]()
    return []


def _models() -> list[str]:
    from mlx_notebook.models.catalog import ALIASES, model_names

    return list(dict.fromkeys([*ALIASES, *model_names()]))


_SOURCES: dict[str, Callable[[], list[str]]] = {
    "chat": lambda: list(chats),
    "gateway": lambda: list(registry.gateways()),
    "model": _models,
    "live_id": lambda: [*(str(handle.id) for handle in registry.live_handles()), "all"],
    "any_id": lambda: [str(handle.id) for handle in registry.handles()],
}
