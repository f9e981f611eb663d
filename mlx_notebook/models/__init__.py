"""Names to loaded models: the BLAS preload, resolving, GGUF conversion, loading, tokenising.

Nothing here decides what runs when, and importing this package imports no MLX.
"""

from mlx_notebook.models.resolve import ResolvedModel, resolve

__all__ = ["ResolvedModel", "resolve"]
