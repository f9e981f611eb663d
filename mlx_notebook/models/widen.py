"""Brings a lazily built model's weights into one type and evaluates them, some modules at a time."""

from __future__ import annotations

from typing import Any


def dequantise(model: Any, target: str) -> Any:
    """The model with plain matrices in place of quantised ones, still lazy.

    Scales are widened first, so that dequantising rounds once, in the target type.
    """
    import mlx.core as mx
    from mlx_lm.utils import dequantize_model

    kind = getattr(mx, target)
    for _, module in model.named_modules():
        if "scales" not in module:
            continue
        for part in ("scales", "biases"):
            if part in module and module[part] is not None and mx.issubdtype(module[part].dtype, mx.floating):
                module[part] = module[part].astype(kind)
    return dequantize_model(model)


def modules_with_weights(model: Any) -> list[tuple[str, Any, int]]:
    """Path, module and bytes of every module that holds arrays itself."""
    found = []
    for path, module in model.named_modules():
        size = sum(int(value.nbytes) for _, value in _own_arrays(module))
        if size:
            found.append((path, module, size))
    return found


def settle(modules: list[tuple[str, Any, int]], target: str | None, keeps: Any) -> None:
    """Cast the modules' own floats to `target` (None: leave them) and evaluate.

    Args:
        modules: of `modules_with_weights`.
        target: `float32`, `float16`, `bfloat16` or None.
        keeps: the model's own word, by path, on what may be narrowed (mlx-lm's `cast_predicate`).
    """
    import mlx.core as mx

    settled: list[Any] = []
    for path, module, _ in modules:
        for name, value in _own_arrays(module):
            wanted = target is not None and mx.issubdtype(value.dtype, mx.floating)
            if wanted and (target == "float32" or keeps(f"{path}.{name}")):
                module[name] = value.astype(getattr(mx, str(target)))
            settled.append(module[name])
    mx.eval(settled)


def _own_arrays(module: Any) -> list[tuple[str, Any]]:
    """Arrays that sit in the module itself, by name; private ones are no weights and keep their type."""
    import mlx.core as mx

    return [(name, value) for name, value in module.items() if isinstance(value, mx.array) and not name.startswith("_")]
