"""Reads and writes safetensors headers without any array library, one tensor at a time.

Format: an eight-byte little-endian length, a JSON header of that length naming each tensor's
type, shape and byte range, then the data (https://huggingface.co/docs/safetensors).
"""

from __future__ import annotations

import json
import math
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx_notebook.errors import ModelLoadError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import numpy.typing as npt

BYTES_OF = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8, "C64": 8,
}  # fmt: skip
# The format's own bound on the header.
LARGEST_HEADER = 100_000_000


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor as the header gives it: type by the format's name (`BF16`), shape."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def read_header(path: Path) -> dict[str, TensorInfo]:
    """All tensors of a file, by name.

    Raises:
        ModelLoadError: not a safetensors file, or shorter than its header says.
    """
    on_disk = path.stat().st_size
    try:
        with path.open("rb") as handle:
            length = struct.unpack("<Q", handle.read(8))[0]
            # A wrong length must not make us read, or allocate, the whole file.
            header = json.loads(handle.read(min(length, LARGEST_HEADER)))
        header.pop("__metadata__", None)
        tensors = {name: TensorInfo(info["dtype"], tuple(info["shape"])) for name, info in header.items()}
        end = max((info["data_offsets"][1] for info in header.values()), default=0)
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(
            f"{path} is not a readable safetensors file ({on_disk:,} bytes on disk): {error}. Download it again "
            "(a file of a few hundred bytes is often a Git LFS pointer).",
            model=str(path.parent),
        ) from error
    if 8 + length + end > on_disk:
        raise ModelLoadError(
            f"{path} is cut short: {on_disk:,} bytes on disk, {8 + length + end:,} by its own header. "
            "Download it again.",
            model=str(path.parent),
        )
    return tensors


def write_file(path: Path, tensors: Mapping[str, TensorInfo], arrays: Iterable[tuple[str, npt.NDArray[Any]]]) -> None:
    """Write tensors in the order of `tensors`, holding one array at a time, and flush them to the disk.

    Args:
        path: the file to make.
        tensors: every tensor, in the order in which `arrays` gives them.
        arrays: name and data of each; C-contiguous, little-endian, as many bytes as declared.
    """
    header = json.dumps(_header(tensors), separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as handle:
        handle.write(struct.pack("<Q", len(header)))
        handle.write(header)
        for (expected, info), (name, array) in zip(tensors.items(), arrays, strict=True):
            if name != expected or array.nbytes != info.size * BYTES_OF[info.dtype]:
                raise ValueError(f"tensor {name!r} does not match its place ({expected!r}, {info})")
            array.tofile(handle)
        handle.flush()
        os.fsync(handle.fileno())


def _header(tensors: Mapping[str, TensorInfo]) -> dict[str, dict[str, str | Sequence[int]]]:
    header: dict[str, dict[str, str | Sequence[int]]] = {"__metadata__": {"format": "mlx"}}
    start = 0
    for name, info in tensors.items():
        stop = start + info.size * BYTES_OF[info.dtype]
        header[name] = {"dtype": info.dtype, "shape": info.shape, "data_offsets": (start, stop)}
        start = stop
    return header
