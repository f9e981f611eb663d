"""Opens a GGUF file and says clearly why one cannot be used. Reads nothing of what the file means.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, read with llama.cpp's own `gguf` package.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.options import shown
from mlx_notebook.errors import ModelLoadError, ModelNotFound

if TYPE_CHECKING:
    from pathlib import Path
    from types import UnionType

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)


@dataclass(frozen=True)
class GgufFile:
    """An open file: metadata by key, tensors by name (memory-mapped, as `gguf.ReaderTensor`)."""

    path: Path
    architecture: str
    fields: dict[str, Any] = field(repr=False)
    tensors: dict[str, Any] = field(repr=False)

    def get(self, key: str, default: Any = None) -> Any:
        """One metadata value as plain Python; `default` where the file has none."""
        found = self.fields.get(key)
        return default if found is None else found.contents()

    def of_architecture(self, key: str, default: Any = None) -> Any:
        """A value under the architecture's own prefix, such as `llama.block_count`."""
        return self.get(f"{self.architecture}.{key}", default)

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number from 1 under the architecture's prefix; without a default the file must hold it.

        Raises:
            ModelLoadError: the file does not hold it, or something else in its place.
        """
        return self.as_whole(f"{self.architecture}.{key}", self._given(key, default), low=1)

    def number(self, key: str, default: float | None = None) -> float:
        """A finite number under the architecture's prefix; raises as `whole`."""
        value = self._given(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._unreadable(f"{self.architecture}.{key}", value, "one number")
        return float(value)

    def as_whole(self, full_key: str, value: Any, *, low: int = 0) -> int:
        """`value`, which stands under this key, as a whole number from `low`; raises as `whole`."""
        whole = isinstance(value, int | float) and not isinstance(value, bool) and float(value).is_integer()
        if not whole or value < low:
            raise self._unreadable(full_key, value, f"one whole number from {low}")
        return int(value)

    def listed(self, full_key: str, kind: type | UnionType, what: str) -> list[Any]:
        """A list of this kind of values, empty where the file has none; raises as `whole`."""
        value = self.get(full_key, [])
        if not isinstance(value, list) or not all(isinstance(each, kind) for each in value):
            raise self._unreadable(full_key, value, f"a list of {what}")
        return value

    def _given(self, key: str, default: float | None) -> Any:
        value = self.of_architecture(key, default)
        if value is None:
            raise ModelLoadError(
                f"{self.path.name} lacks the metadata key '{self.architecture}.{key}'; the file is incomplete. "
                "Download it again, or convert the model anew with llama.cpp's convert_hf_to_gguf.py.",
                model=str(self.path),
            )
        return value

    def _unreadable(self, full_key: str, value: Any, wanted: str) -> ModelLoadError:
        found = f"a list of {len(value)} (one for each layer?)" if isinstance(value, list) else shown(value)
        return ModelLoadError(
            f"{self.path.name}: the metadata key '{full_key}' holds {found}, and {wanted} is expected."
            " Use an mlx-lm folder or a Hugging Face id of this model.",
            model=str(self.path),
        )


def open_gguf(path: Path) -> GgufFile:
    """Open and check a file.

    Raises:
        ModelNotFound: there is no such file.
        ModelLoadError: not GGUF, of another version or byte order, one part of several, or truncated.
    """
    check_header(path)
    import gguf

    try:
        reader = gguf.GGUFReader(path)
        tensors = {tensor.name: tensor for tensor in reader.tensors}
        architecture = (
            reader.fields["general.architecture"].contents() if "general.architecture" in reader.fields else ""
        )
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError, MemoryError, TypeError) as error:
        raise ModelLoadError(
            f"{path.name} is damaged or cut short ({path.stat().st_size:,} bytes on disk): {error}. Download it again.",
            model=str(path),
        ) from error
    if not architecture:
        raise ModelLoadError(
            f"{path.name} names no architecture (general.architecture); it holds no language model.", model=str(path)
        )
    opened = GgufFile(path, str(architecture), dict(reader.fields), tensors)
    if opened.as_whole("split.count", opened.get("split.count", 0)) > 1:
        raise ModelLoadError(
            f"{path.name} is one part of {opened.get('split.count')}. Join them with llama.cpp's "
            "`llama-gguf-split --merge FIRST_PART JOINED.gguf` and load the joined file.",
            model=str(path),
        )
    return opened


def check_header(path: Path) -> None:
    """Refuse what is no GGUF file by its first eight bytes.

    Raises:
        ModelNotFound: there is no such file.
        ModelLoadError: not GGUF, or of another version or byte order.
    """
    if not path.is_file():
        raise ModelNotFound(f"There is no file {path}.", name=str(path))
    with path.open("rb") as handle:
        head = handle.read(8)
    if head[:4] != MAGIC:
        raise ModelLoadError(
            f"{path.name} is not a GGUF file: it begins with {head[:4]!r}, not with b'GGUF'. "
            "(A few hundred bytes of text are often a Git LFS pointer or a web page saved in its place.)",
            model=str(path),
        )
    if len(head) < 8:
        raise ModelLoadError(f"{path.name} is cut short after {len(head)} bytes. Download it again.", model=str(path))
    version = struct.unpack("<I", head[4:])[0]
    if version in SUPPORTED_VERSIONS:
        return
    if struct.unpack(">I", head[4:])[0] in SUPPORTED_VERSIONS:
        raise ModelLoadError(
            f"{path.name} is a big-endian GGUF file, made for another kind of machine. "
            "Convert it with `gguf-convert-endian` from the gguf package, or download the little-endian file.",
            model=str(path),
        )
    raise ModelLoadError(
        f"{path.name} is GGUF version {version}; versions 2 and 3 can be read.",
        model=str(path),
    )
