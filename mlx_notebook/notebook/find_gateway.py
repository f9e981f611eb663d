"""Which gateway a magic means: the named one, the current one, or the default model, loaded on the way."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from mlx_notebook.gateway.registry import registry
from mlx_notebook.models.catalog import DEFAULT_MODEL, default_is_here
from mlx_notebook.notebook.printing import say

if TYPE_CHECKING:
    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.notebook.settings import Mode


def meant(magic: str, wanted: object) -> Gateway:
    """The gateway that this is, or that has this name.

    Raises:
        UsageError: naming those that there are.
    """
    if isinstance(wanted, str):
        return _named(magic, wanted)
    from mlx_notebook.gateway.gateway import Gateway

    if isinstance(wanted, Gateway):
        return wanted
    raise UsageError(f"{magic} takes a gateway or its name, not {type(wanted).__name__}")


def _named(magic: str, name: str) -> Gateway:
    gateways = registry.gateways()
    if name in gateways:
        return gateways[name]
    if not gateways:
        raise UsageError(f"{magic}: there is no gateway {name!r}, nor any other: %mlxload {DEFAULT_MODEL} makes one")
    close = difflib.get_close_matches(name, gateways, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there is {', '.join(gateways)}"
    raise UsageError(f"{magic}: there is no gateway {name!r}; {hint}")


def find_or_load(wanted: object, mode: Mode) -> Gateway:
    """The gateway that `--gateway` means, else the current one, else the default model's, loaded now.

    Raises:
        UsageError: no such gateway, or none is loaded and the default model is not on this machine.
    """
    if wanted is not None:
        return meant("%%mlxgen --gateway", wanted)
    current = registry.current()
    return current if current is not None else _load_default(mode)


def _load_default(mode: Mode) -> Gateway:
    """Only what is here already: nothing is downloaded that the user did not name."""
    from mlx_notebook.notebook.loading import load_model

    if not default_is_here():
        raise UsageError(
            f"%%mlxgen: no model is loaded, and the default one is not on this machine: %mlxload {DEFAULT_MODEL} "
            "fetches it, %mlxmodels lists what is here"
        )
    say(f"No model was loaded yet: {DEFAULT_MODEL}, the default (%mlxload takes others).")
    return load_model(DEFAULT_MODEL, {}, mode)
