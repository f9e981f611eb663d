"""In which types a model will run, and what it will take in memory, from its files' headers alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx_notebook.models.cache_folder import MANIFEST
from mlx_notebook.models.safetensors_file import BYTES_OF, TensorInfo

if TYPE_CHECKING:
    from mlx_notebook.models.model_files import ModelFiles

DTYPES = ("float32", "float16", "bfloat16", "4bit")
_BYTES_OF_DTYPE = {"float32": 4, "float16": 2, "bfloat16": 2}
_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Types:
    """What happens to stored weights.

    Attributes:
        plain: quantised matrices become plain ones.
        floats: the type that all floats take; None leaves each as it is stored.
    """

    plain: bool
    floats: str | None


def choose_types(files: ModelFiles, dtype: str | None, *, slow_halves: bool) -> Types:
    """The types for a user's wish.

    Args:
        files: the model's checked folder.
        dtype: one of `DTYPES`, or None for the default.
        slow_halves: the device computes fast in float32 only (a Linux CPU).

    Raises:
        ValueError: an unknown type, or one that these weights cannot take.
    """
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype={dtype!r} is not known; it is one of {', '.join(DTYPES)}")
    # A converted folder mixes float32 vectors with float16 matrices; its configuration names one type for all.
    uniform = str(files.config.get("torch_dtype", "float16")) if (files.folder / MANIFEST).is_file() else None
    kept = Types(plain=False, floats="float32" if slow_halves else uniform)
    if dtype == "4bit":
        if not is_quantised(files):
            raise ValueError(
                f"dtype='4bit' keeps weights that are quantised already, and those of {files.folder.name} are not"
            )
        return kept
    if any(name.endswith(".global_scale") for name in files.tensors):  # NVFP4: only its own kernels know both scales
        if dtype is not None:
            raise ValueError(
                f"{files.folder.name} has NVFP4 weights with global scales, which run only as they are: "
                "use dtype='4bit'"
            )
        return Types(plain=False, floats=None)
    if dtype is not None:
        return Types(plain=True, floats=dtype)
    return Types(plain=True, floats="float32") if slow_halves else kept


def running_dtype(files: ModelFiles, types: Types) -> str:
    """The type's name for people: `4bit`, `8bit` and the like where matrices stay quantised, else a float type."""
    if is_quantised(files) and not types.plain:
        quantization = files.config.get("quantization") or files.config.get("quantization_config") or {}
        return f"{quantization.get('bits', 4)}bit"
    if types.floats is not None:
        return types.floats
    sizes: Counter[str] = Counter()
    for info in files.tensors.values():
        sizes[_NAMES.get(info.dtype, info.dtype)] += info.size
    return sizes.most_common(1)[0][0] if sizes else "float32"


def weight_bytes(files: ModelFiles, types: Types) -> int:
    """Bytes of all weights once loaded."""
    return sum(_tensor_bytes(files, name, types) for name in files.tensors)


def load_bytes(files: ModelFiles, types: Types) -> int:
    """What loading takes at its peak: all weights, and the largest one held twice while it is converted."""
    return weight_bytes(files, types) + max((_tensor_bytes(files, name, types) for name in files.tensors), default=0)


def is_quantised(files: ModelFiles) -> bool:
    """Whether the folder holds matrices in MLX's quantised form."""
    return any(name.endswith(".scales") for name in files.tensors)


def _tensor_bytes(files: ModelFiles, name: str, types: Types) -> int:
    """Bytes of one stored tensor once loaded; 0 for scales and biases that dequantising uses up."""
    info = files.tensors[name]
    base, _, leaf = name.rpartition(".")
    scales = files.tensors.get(f"{base}.scales")
    if types.plain and types.floats is not None and scales is not None:
        if leaf in {"scales", "biases"}:
            return 0
        if leaf == "weight" and info.dtype == "U32":
            return scales.size * _group_size(files.config, base, info, scales) * _BYTES_OF_DTYPE[types.floats]
    if types.floats is not None and info.dtype in _NAMES:
        return info.size * _BYTES_OF_DTYPE[types.floats]
    return info.size * BYTES_OF.get(info.dtype, 4)


def _group_size(config: dict[str, Any], base: str, packed: TensorInfo, scales: TensorInfo) -> int:
    """Values a scale covers: the layer's own setting, the model's, or (where neither says) from 4 bits."""
    quantization = config.get("quantization") or config.get("quantization_config") or {}
    layer = quantization.get(base)
    for source in (layer, quantization):
        if isinstance(source, dict) and isinstance(source.get("group_size"), int):
            return int(source["group_size"])
    return max(1, packed.shape[-1] * 8 // scales.shape[-1])
