"""A language-model engine inside a Jupyter kernel: cells submit prompts, each answer streams to its own cell.

The public names, nothing else; each is imported when it is first used, so that importing the
package loads no MLX and no widgets.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlx_notebook import models
    from mlx_notebook.core.placement import Placement, Reason
    from mlx_notebook.core.results import Result, TokenLogprob
    from mlx_notebook.core.rows import FinishDetail, FinishReason, RowStatus
    from mlx_notebook.doctor import doctor
    from mlx_notebook.engine.backend import ScriptedBackend
    from mlx_notebook.errors import (
        BackendMissing,
        Cancelled,
        GatewayClosed,
        GatewayDead,
        GrammarError,
        MlxNotebookError,
        ModelLoadError,
        ModelNotFound,
        OverBudget,
        OverContext,
        PlacementMismatch,
        QueueFull,
        RowFailed,
        RowsFailed,
        UnsupportedRequest,
        WouldDeadlock,
    )
    from mlx_notebook.gateway.chats import chats
    from mlx_notebook.gateway.default import compare, current, gateways, generate, get, last, submit
    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.gateway.handle import Handle
    from mlx_notebook.gateway.handles import Handles, as_completed, wait
    from mlx_notebook.gateway.stats import GatewayStats
    from mlx_notebook.notebook.extension import load_ipython_extension, unload_ipython_extension
    from mlx_notebook.trace.file import load_trace
    from mlx_notebook.trace.trace import Trace

__version__ = "0.1.0"

_HOMES = {
    "core.placement": ("Placement", "Reason"),
    "core.results": ("Result", "TokenLogprob"),
    "core.rows": ("FinishDetail", "FinishReason", "RowStatus"),
    "doctor": ("doctor",),
    "engine.backend": ("ScriptedBackend",),
    "errors": (
        "BackendMissing",
        "Cancelled",
        "GatewayClosed",
        "GatewayDead",
        "GrammarError",
        "MlxNotebookError",
        "ModelLoadError",
        "ModelNotFound",
        "OverBudget",
        "OverContext",
        "PlacementMismatch",
        "QueueFull",
        "RowFailed",
        "RowsFailed",
        "UnsupportedRequest",
        "WouldDeadlock",
    ),
    "gateway.chats": ("chats",),
    "gateway.default": ("compare", "current", "gateways", "generate", "get", "last", "map", "submit"),
    "gateway.gateway": ("Gateway",),
    "gateway.handle": ("Handle",),
    "gateway.handles": ("Handles", "as_completed", "wait"),
    "gateway.stats": ("GatewayStats",),
    "trace.file": ("load_trace",),
    "trace.trace": ("Trace",),
    "notebook.extension": ("load_ipython_extension", "unload_ipython_extension"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

# `map` is public too, but `from mlx_notebook import *` must not hide the builtin.
__all__ = [
    "BackendMissing",
    "Cancelled",
    "FinishDetail",
    "FinishReason",
    "Gateway",
    "GatewayClosed",
    "GatewayDead",
    "GatewayStats",
    "GrammarError",
    "Handle",
    "Handles",
    "MlxNotebookError",
    "ModelLoadError",
    "ModelNotFound",
    "OverBudget",
    "OverContext",
    "Placement",
    "PlacementMismatch",
    "QueueFull",
    "Reason",
    "Result",
    "RowFailed",
    "RowStatus",
    "RowsFailed",
    "ScriptedBackend",
    "TokenLogprob",
    "Trace",
    "UnsupportedRequest",
    "WouldDeadlock",
    "as_completed",
    "chats",
    "compare",
    "current",
    "doctor",
    "gateways",
    "generate",
    "get",
    "last",
    "load_ipython_extension",
    "load_trace",
    "models",
    "submit",
    "unload_ipython_extension",
    "wait",
]


def __getattr__(name: str) -> Any:
    if name == "last":  # it changes with every request, so it is looked up each time
        from mlx_notebook.gateway.default import last_handle

        return last_handle()
    if name == "models":
        return importlib.import_module("mlx_notebook.models")
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'mlx_notebook' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"mlx_notebook.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "map"])
