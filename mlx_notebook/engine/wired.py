"""The wired-memory limit of Apple GPUs, raised while any backend of the process lives.

One count for the process: the first backend raises the limit to what the device recommends, the last one puts
back what was there, in whatever order they close. Elsewhere there is no such limit and nothing happens.
"""

from __future__ import annotations

import threading

import mlx.core as mx

_guard = threading.Lock()
_holders = 0
_before: int | None = None


def hold() -> None:
    """Count one more backend; the first raises the limit."""
    global _holders, _before
    with _guard:
        _holders += 1
        if _holders == 1:
            recommended = mx.device_info().get("max_recommended_working_set_size") if mx.metal.is_available() else None
            _before = mx.set_wired_limit(int(recommended)) if recommended else None


def release() -> None:
    """Count one less; the last one restores the limit."""
    global _holders, _before
    with _guard:
        _holders -= 1
        if _holders == 0 and _before is not None:
            mx.set_wired_limit(_before)
            _before = None
