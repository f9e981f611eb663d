"""The one adapter that routes a loaded model's attention to our stores.

mlx-lm's model files import `scaled_dot_product_attention` by name. For as long as a model is served, that
name in the modules of its classes is ours: calls with `Ragged` keys go row by row, those with `Paged` keys over pages,
an engine's own chunks by products where that is faster, and all others straight on to what was there. Modules are
counted, so that several models of one family may come and go in any
order; the last one puts back what was there.
"""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING, Any

from mlx_notebook.engine.stores import chunk_attention
from mlx_notebook.engine.stores.pool import Paged, attend_pages
from mlx_notebook.engine.stores.ragged import Ragged, attend_as_called

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    import mlx.core as mx

NAME = "scaled_dot_product_attention"

_guard = threading.Lock()
_holders: dict[str, int] = {}
_originals: dict[str, Callable[..., mx.array]] = {}


class AttentionRoute:
    """Routes one model's attention until `close`, which may be called more than once."""

    def __init__(self, model: Any) -> None:
        self._names = sorted(_modules_of(model))
        self._open = True
        with _guard:
            for name in self._names:
                _take(name)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules whose attention is routed; none means that the model does not use the shared function."""
        return tuple(self._names)

    def close(self) -> None:
        """Give the names back."""
        with _guard:
            if self._open:
                self._open = False
                for name in self._names:
                    _give_back(name)


def _modules_of(model: Any) -> set[str]:
    names = {type(part).__module__ for part in model.modules()}
    return {name for name in names if name in sys.modules and callable(getattr(sys.modules[name], NAME, None))}


def _take(name: str) -> None:
    _holders[name] = _holders.get(name, 0) + 1
    if _holders[name] == 1:
        module = sys.modules[name]
        _originals[name] = getattr(module, NAME)
        setattr(module, NAME, _routed(_originals[name]))


def _give_back(name: str) -> None:
    _holders[name] -= 1
    if _holders[name] == 0:
        del _holders[name]
        module: ModuleType | None = sys.modules.get(name)
        original = _originals.pop(name)
        if module is not None:
            setattr(module, NAME, original)


def _routed(original: Callable[..., mx.array]) -> Callable[..., mx.array]:
    def scaled_dot_product_attention(queries: Any, keys: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
        if type(keys) is Ragged:
            return attend_as_called(original, queries, keys, values, *args, **kwargs)
        if type(keys) is Paged:
            return attend_pages(queries, keys, values, *args, **kwargs)
        if chunk_attention.serves(queries, keys, kwargs.get("mask"), kwargs.get("sinks")):
            return chunk_attention.attend(queries, keys, values, kwargs["scale"])
        return original(queries, keys, values, *args, **kwargs)

    return scaled_dot_product_attention
