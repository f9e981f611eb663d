"""A look at a model's shapes that leaves no trace in the caller's thread.

Building a model draws its first weights from the thread's random state, and every array belongs to a stream of its
thread. On a thread of its own neither is the caller's.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def on_own_thread(look: Callable[[], object]) -> None:
    """Run `look` on a short-lived thread and wait; what it raises is raised here. Nothing of MLX's may leave it."""

    def work() -> None:
        import mlx.core as mx

        try:
            look()
        finally:
            mx.clear_streams()  # a thread that ends with live streams can abort the process at exit

    with ThreadPoolExecutor(1, thread_name_prefix="mlx-notebook look") as pool:
        pool.submit(work).result()
