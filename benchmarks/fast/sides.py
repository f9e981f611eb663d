"""Ours and the peers over one model: at most one gateway or backend of ours at a time; weights are held once."""

from __future__ import annotations

import gc
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import mlx.core as mx

import mlx_notebook as mn
from benchmarks.fast.shapes import load
from mlx_notebook.core.kv_scheme import check_scheme
from mlx_notebook.engine.mlx_backend import MlxBackend

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.fast.shapes import Loaded
    from benchmarks.fast.work import Timed

T = TypeVar("T")


class Served:
    """A backend on a thread of its own, as an engine has.

    Args:
        loaded: the model.
        kv: how keys and values are stored.
    """

    def __init__(self, loaded: Loaded, kv: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ours")
        try:
            self.backend = self.run(lambda: MlxBackend(loaded.model, loaded.tokenizer, kv_scheme=check_scheme(kv)))
        except BaseException:
            self._pool.shutdown()
            raise

    def run(self, work: Callable[[], T]) -> T:
        """Run it there and wait."""
        return self._pool.submit(work).result()

    def case(self, make: Callable[[MlxBackend], Timed]) -> Timed:
        """What `make` gives, made and run there."""
        timed = self.run(lambda: make(self.backend))
        return lambda: self.run(timed)

    def drop(self, rows: int) -> None:
        """Free rows 0 to `rows` and what they held."""

        def work() -> None:
            for number in range(rows):
                self.backend.drop(number)
            self.backend.synchronize()

        self.run(work)
        mx.clear_cache()

    def close(self) -> None:
        """The thread's last act."""
        self.run(self.backend.close)
        self._pool.shutdown()


class Sides:
    """What the tables run on.

    Args:
        shape: of the model that all sides share; it is loaded when first needed.
    """

    def __init__(self, shape: str) -> None:
        self.shape = shape
        self._loaded: Loaded | None = None
        self._gateway: mn.Gateway | None = None
        self._made: tuple[int, dict[str, Any]] = (0, {})

    @property
    def loaded(self) -> Loaded:
        """The model."""
        if self._loaded is None:
            began = time.perf_counter()
            self._loaded = load(self.shape)
            spent = time.perf_counter() - began
            print(f"{self.shape}: loaded, {self._loaded.nbytes / 1e9:.3g} GB, {spent:.1f} s", flush=True)
        return self._loaded

    def unload(self) -> None:
        """Free the model, for a peer in another process; whoever needs it next loads it again."""
        self._loaded = None
        self.close()

    def gateway(self, rows: int, **settings: Any) -> mn.Gateway:
        """A gateway with room for so many rows: the open one where it has the same settings, else a new one."""
        if self._gateway is None or self._made[0] < rows or self._made[1] != settings:
            self.close()
            self._gateway = mn.Gateway.from_loaded(self.loaded.model, self.loaded.tokenizer, batch=rows, **settings)
            self._made = (rows, settings)
        return self._gateway

    @contextmanager
    def theirs(self) -> Iterator[None]:
        """While a peer computes: the device is this thread's."""
        if self._gateway is None:
            yield
        else:
            with self._gateway.lease():
                yield

    def peer(self, run: Timed) -> Timed:
        """That case with the device to itself."""

        def alone() -> dict[str, float]:
            with self.theirs():
                return run()

        return alone

    @contextmanager
    def served(self, *schemes: str) -> Iterator[list[Served]]:
        """Backends over the model, one for each scheme of keys and values, without a gateway."""
        self.close()
        found: list[Served] = []
        try:
            found += [Served(self.loaded, kv) for kv in schemes]
            yield found
        finally:
            for served in found:
                served.close()

    def close(self) -> None:
        """Let go of the gateway and what it held."""
        if self._gateway is not None:
            self._gateway.close()
            self._gateway = None
        gc.collect()
        mx.clear_cache()
