"""`%load_ext mlx_notebook`: registers the magics, and takes everything back at unload.

Besides the magics: their completion, `%config MlxNotebook`, and the gateway's hooks that tell which cell
a request came from. No event of the shell is hooked, nothing is displayed, no thread starts.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from mlx_notebook.errors import ModelLoadError
from mlx_notebook.gateway.hooks import hooks
from mlx_notebook.gateway.registry import registry
from mlx_notebook.models.blas import preload_blas
from mlx_notebook.notebook import execution
from mlx_notebook.notebook.cell_rows import say_interrupted
from mlx_notebook.notebook.completion import Completion
from mlx_notebook.notebook.magics import NAMES, MlxMagics
from mlx_notebook.notebook.settings import MlxNotebook
from mlx_notebook.notebook.show import show_handle

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


_loaded: dict[InteractiveShell, Completion] = {}


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Register the magics with a shell; again does nothing."""
    if shell in _loaded:
        return
    # Early, for a cell may import MLX before it loads a model; a wrong setting is told when a model is loaded.
    with contextlib.suppress(ModelLoadError):
        preload_blas()
    settings = MlxNotebook(parent=shell)
    completion = Completion(shell)
    _configurables(shell).append(settings)
    shell.register_magics(MlxMagics(shell, settings))
    completion.install()
    hooks.execution = lambda: execution.current(shell)
    hooks.interrupted = say_interrupted
    hooks.show = lambda handle: show_handle(shell, settings, handle)
    _loaded[shell] = completion


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """Close every gateway, end our threads and take the magics away; again does nothing."""
    from mlx_notebook.notebook import publisher

    for gateway in registry.gateways().values():
        gateway.close()
    publisher.shutdown()
    completion = _loaded.pop(shell, None)
    if completion is None:
        return
    completion.remove()
    for kind, name in NAMES:
        shell.magics_manager.magics[kind].pop(name, None)
    shell.magics_manager.registry.pop(MlxMagics.__name__, None)
    configurables = _configurables(shell)
    configurables[:] = [one for one in configurables if not isinstance(one, MlxNotebook | MlxMagics)]
    hooks.execution = hooks.interrupted = hooks.show = None


def _configurables(shell: InteractiveShell) -> list[Any]:
    """What `%config` knows. IPython's annotation names only its own kind."""
    configurables: list[Any] = shell.configurables
    return configurables
