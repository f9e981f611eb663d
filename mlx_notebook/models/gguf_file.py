"""Opens a GGUF file and says clearly why one cannot be used. Reads nothing of what the file means.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, read with llama.cpp's own `gguf` package.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlx_notebook.errors import ModelLoadError, ModelNotFound

if TYPE_CHECKING:
    from pathlib import Path

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

    def require(self, key: str) -> Any:
        """A value under the architecture's prefix that the family cannot do without.

        Raises:
            ModelLoadError: the file does not hold it.
        """
        value = self.of_architecture(key)
        if value is None:
            raise ModelLoadError(
                f"{self.path.name} lacks the metadata key '{self.architecture}.{key}'; the file is incomplete. "
                "Download it again, or convert the model anew with llama.cpp's convert_hf_to_gguf.py.",
                model=str(self.path),
            )
        return value


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
    if int(opened.get("split.count", 0)) > 1:
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
