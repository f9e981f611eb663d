"""What one `%%mlxgen` asks for: each prompt, under each setting, so many times; submitted all or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from mlx_notebook.core.options import as_int
from mlx_notebook.errors import MlxNotebookError
from mlx_notebook.gateway.handles import Handles
from mlx_notebook.gateway.submission import draw_seed
from mlx_notebook.notebook import cell_rows
from mlx_notebook.notebook.printing import in_one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.gateway.handle import Handle


@dataclass(frozen=True, slots=True)
class Answers:
    """The rows of a cell: their handles, a title for each, and whether the user asked for one only."""

    handles: Handles
    titles: tuple[str, ...]
    several: bool

    @property
    def value(self) -> Handle | Handles:
        """What the magic gives back: a handle, or Handles where several were asked for."""
        return self.handles if self.several else self.handles[0]


@dataclass(frozen=True, slots=True)
class _Ask:
    gateway: Gateway
    prompt: str
    title: str
    options: dict[str, Any]


def submit_cell(
    magic: str, gateway: Gateway, prompts: Sequence[str], options: Mapping[str, Any], *, split: bool
) -> Answers:
    """Submit what a cell asks for. `with` and `n` are among the options where they were given.

    Raises:
        UsageError, and all that `Gateway.submit` raises: then nothing is left running.
    """
    common = dict(options)
    settings = [_setting(magic, value, gateway) for value in common.pop("with", ())]
    try:
        n = as_int("n", common.pop("n", 1), 1, 10_000, "a whole number from 1 to 10000")
        if settings and "seed" not in common:
            common["seed"] = draw_seed()  # side by side, only the settings are to differ
        asks = [ask for prompt in prompts for ask in _asks(gateway, prompt, common, settings)]
        for ask in asks:
            ask.gateway.check(ask.prompt, **ask.options)
        answers = _submit_all(asks, n)
    except (MlxNotebookError, ValueError, TypeError) as error:
        raise in_one_line(error) from None
    titles = tuple(ask.title for ask in asks for _ in range(n))
    return Answers(answers, titles, several=split or n > 1 or bool(settings))


def _setting(magic: str, value: object, gateway: Gateway) -> tuple[str, Gateway, Mapping[str, Any]]:
    """(label, gateway, options) of one `--with`."""
    from mlx_notebook.gateway.gateway import Gateway as AnyGateway

    if isinstance(value, AnyGateway):
        return value.name, value, {}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        if "n" in value:
            raise UsageError(f"{magic}: n holds for all settings: --n {value['n']}")
        label = ", ".join(f"{key}={one!r}" for key, one in value.items())
        return label or "as it stands", gateway, value
    raise UsageError(
        f"{magic}: --with takes a dictionary of options or a gateway, as $name, not {type(value).__name__}"
    )


def _asks(
    gateway: Gateway,
    prompt: str,
    common: dict[str, Any],
    settings: Sequence[tuple[str, Gateway, Mapping[str, Any]]],
) -> list[_Ask]:
    if not settings:
        return [_Ask(gateway, prompt, prompt, common)]
    # The setting first: a title is cut at its end.
    return [
        _Ask(other, prompt, f"{label} \N{MIDDLE DOT} {prompt.strip()}", {**common, **own})
        for label, other, own in settings
    ]


def _submit_all(asks: Sequence[_Ask], n: int) -> Handles:
    handles = Handles()
    try:
        for ask in asks:
            made = ask.gateway.submit(ask.prompt, **ask.options, n=n)
            handles.extend(made if isinstance(made, Handles) else [made])
    except BaseException:
        handles.cancel()
        raise
    for handle in handles:
        handle.add_done_callback(cell_rows.remember_failure)
    return handles
