"""The saved file of a run: one line of JSON a finished row, under one line that says which run it is.

UTF-8 JSON Lines. A line is written in one call, so that a killed process leaves whole lines and at most one
torn one at the end, which the next reader drops. Text in it is data: JSON escapes whatever could end a line.
A later line for the same row and sample replaces an earlier one.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlx_notebook.gateway.frames.outcome import COLUMNS, EXTRAS, Outcome

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(slots=True)
class Saved:
    """What a file holds: the run's identity, outcomes by (row, sample), each row's checksum, and its sound length."""

    identity: dict[str, Any]
    outcomes: dict[tuple[int, int], Outcome] = field(default_factory=dict)
    checksums: dict[int, str] = field(default_factory=dict)
    sound_bytes: int = 0


def read_saved(path: Path) -> Saved:
    """Read a saved run.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is no saved run, or a line of it is broken; the line is named.
    """
    content = path.read_bytes()
    sound = content.rfind(b"\n") + 1  # what follows was being written when its process ended
    lines = content[:sound].decode("utf-8", "replace").split("\n")[:-1]
    head = _object(lines[0]) if lines else None
    if head is None or head.get("kind") != "map":
        raise ValueError(f"{path}: its first line is not that of a run saved by map()")
    saved = Saved(head, sound_bytes=sound)
    for number, line in enumerate(lines[1:], start=2):
        values = _object(line)
        if values is None or not {"row", "sample", *COLUMNS} <= values.keys():
            raise ValueError(f"{path}, line {number}: not a row that map() wrote")
        key = (int(values["row"]), int(values["sample"]))
        saved.checksums[key[0]] = str(values.get("checksum"))
        names = [*COLUMNS, *(name for name in EXTRAS if name in values)]
        saved.outcomes[key] = {name: values[name] for name in names}
    return saved


def _object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


class Journal:
    """A file that a run appends to.

    Args:
        path: the file. Its folder must exist.
        identity: of the run; heads a new file.
        keep: bytes of an existing file of the same run to go on after; None makes a new file.

    Raises:
        FileExistsError: a new file was asked for and there is one.
    """

    def __init__(self, path: Path, identity: dict[str, Any], keep: int | None = None) -> None:
        flags = os.O_WRONLY | os.O_APPEND | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        self._file = os.open(path, flags | (os.O_CREAT | os.O_EXCL if keep is None else 0), 0o644)
        try:
            if keep is None:
                self._write(identity)
            else:
                os.ftruncate(self._file, keep)
        except BaseException:
            self.close()
            raise

    def append(self, row: int, sample: int, label: Any, checksum: str, outcome: Outcome) -> None:
        """Write one finished row; it is with the operating system when this returns."""
        self._write({"row": row, "sample": sample, "index": label, "checksum": checksum, **outcome})

    def close(self) -> None:
        """Close the file; again does nothing."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

    def _write(self, values: dict[str, Any]) -> None:
        line = json.dumps(values, ensure_ascii=False, default=str) + "\n"
        # Half a surrogate pair has no UTF-8, but it has an escape that JSON reads back.
        data = line.encode("utf-8", "backslashreplace")
        while data:
            data = data[os.write(self._file, data) :]
