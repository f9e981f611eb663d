"""A Ctrl-C at every point where Python lets one in.

CPython looks for signals when a function begins, after a call of a C function, and when a loop jumps
back. `at_every_point` runs a scenario again and again, with a KeyboardInterrupt raised at the first such
point in our code, then at the second, and so on, until a run gets through.
"""

from __future__ import annotations

import dis
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import mlx_notebook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import CodeType, FrameType

OURS = str(Path(mlx_notebook.__file__).parent)
MOST_POINTS = 10_000
BELOW_US = ("threading.py", "contextlib.py", "weakref.py", "_weakrefset.py")


class Interrupting:
    """Raises KeyboardInterrupt at one point of what runs inside the `with` block; `where` says which it was.

    Args:
        number: the point, counted from 0.
    """

    def __init__(self, number: int) -> None:
        self.where: str | None = None
        self._left = number
        self._in_python: set[int] = set()
        self._last: dict[int, dis.Instruction] = {}

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _arg: object) -> Any:
        if self.where is not None:
            return None
        if frame.f_back is not None:
            self._in_python.add(id(frame.f_back))
        if not _is_traced(frame):
            return None
        frame.f_trace_opcodes = True
        self._last.pop(id(frame), None)
        if event == "call" and frame.f_lasti <= _first(frame.f_code) and not _ends_a_block(frame.f_code):
            self._point(frame, "entering")
        return self._trace_opcodes

    def _trace_opcodes(self, frame: FrameType, event: str, _arg: object) -> Any:
        if event != "opcode" or self.where is not None:
            return self._trace_opcodes
        before = self._last.get(id(frame))
        now = _instructions(frame.f_code)[frame.f_lasti]
        self._last[id(frame)] = now
        called_python = id(frame) in self._in_python
        self._in_python.discard(id(frame))
        if before is None or _handler(frame.f_code, before.offset) != _handler(frame.f_code, now.offset):
            return self._trace_opcodes  # raised from here it would reach another handler than the signal's would
        called = before.opname in {"CALL", "CALL_FUNCTION_EX"} and not called_python
        if called or before.opname.startswith("JUMP_BACKWARD"):
            self._point(frame, f"after {before.opname}")
        return self._trace_opcodes

    def _point(self, frame: FrameType, what: str) -> None:
        self._left -= 1
        if self._left < 0:
            code = frame.f_code
            self.where = f"{what} at {Path(code.co_filename).name}:{frame.f_lineno} in {code.co_qualname}"
            sys.settrace(None)
            raise KeyboardInterrupt(self.where)


_tables: dict[CodeType, dict[int, dis.Instruction]] = {}


def _instructions(code: CodeType) -> dict[int, dis.Instruction]:
    if code not in _tables:
        _tables[code] = {i.offset: i for i in dis.get_instructions(code)}
    return _tables[code]


def _handler(code: CodeType, offset: int) -> int | None:
    entries = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    covering = [entry.target for entry in entries if entry.start <= offset < entry.end]
    return covering[-1] if covering else None


def _first(code: CodeType) -> int:
    return next(i.offset for i in dis.get_instructions(code) if i.opname == "RESUME")


def _is_traced(frame: FrameType | None) -> bool:
    """Ours or what we stand on.

    Not in Thread.start: cut short, that leaves a thread which never gets to our code. Nor in a weak set's callback,
    which runs when anything is freed: what is raised there goes no further.
    """
    assert frame is not None
    code = frame.f_code
    while frame is not None:
        if frame.f_code.co_qualname in {"Thread.start", "WeakSet.__init__.<locals>._remove"}:
            return False
        frame = frame.f_back
    return code.co_filename.startswith(OURS) or code.co_filename.endswith(BELOW_US)


def _ends_a_block(code: CodeType) -> bool:
    # An interrupt as `__exit__` begins skips it altogether, in every context manager written in Python:
    # nothing that we write can help there (a lease that stays behind so is what break_lease() is for).
    return code.co_name == "__exit__"


def at_every_point(scenario: Callable[[], object]) -> Iterator[str]:
    """Run `scenario` with an interrupt at each point in turn; after each run yields where it was."""
    number = 0
    while True:
        interrupting = Interrupting(number)
        try:
            with interrupting:
                scenario()
        except KeyboardInterrupt:
            pass
        if interrupting.where is None:
            return
        yield interrupting.where
        number += 1
        assert number < MOST_POINTS, "each interrupted run leaves something behind that lengthens the next"
