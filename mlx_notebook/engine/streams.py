"""The device stream that a backend computes on, which belongs to the engine's thread as all streams do.

User code on that thread may clear the thread's streams (`mx.clear_streams()`). Arrays that were computed, or are under
way, outlive that; what was only built does not. So a stream that is gone is replaced, and whoever needs what was lost
computes it again.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import mlx.core as mx

from mlx_notebook.engine import wired

if TYPE_CHECKING:
    from collections.abc import Iterator


class EngineStream:
    """One backend's stream, made when it is first needed."""

    def __init__(self) -> None:
        self._made: mx.Stream | None = None
        self._pulse: mx.array | None = None
        self._defaults_gone = False

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """What is computed inside goes to this stream."""
        try:
            with mx.stream(self._stream):
                yield
        finally:
            if self._defaults_gone:  # leaving the block brought the thread's old default back
                self._defaults_gone = False
                self._replace_defaults()

    def is_there(self) -> bool:
        """Whether this thread's streams are as they were; where not, they are replaced, inside of `used` too."""
        if self._made is None or self._pulse is None:
            return True
        try:
            # A graph of one addition, not waited for: dispatching it is what fails.
            mx.async_eval(mx.add(self._pulse, self._pulse, stream=self._made))  # type: ignore[no-untyped-call]
        except RuntimeError:
            self._made = mx.new_stream(mx.default_device())
            mx.set_default_stream(self._made)
            self._defaults_gone = True
            return False
        return True

    def synchronize(self) -> None:
        """Wait till the device has done all that was dispatched."""
        if self._made is not None:
            mx.synchronize(self._made)

    def close(self) -> None:
        """Wait for the device, and give all of the thread's streams back."""
        if self._made is not None:
            mx.synchronize(self._made)
            wired.release()
            self._made = None
        # A thread that ends with live streams can abort the process at exit; cleared by others they still can.
        mx.clear_streams()

    @property
    def _stream(self) -> mx.Stream:
        if self._made is None:
            self._made = mx.new_stream(mx.default_device())
            wired.hold()
            with mx.stream(self._made):
                self._pulse = mx.zeros((1,))
                mx.eval(self._pulse)
        return self._made

    @staticmethod
    def _replace_defaults() -> None:
        devices = {mx.default_device().type.name: mx.default_device(), "cpu": mx.Device(mx.cpu)}
        for device in devices.values():
            mx.set_default_stream(mx.new_stream(device))
