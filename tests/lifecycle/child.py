"""What a child process does: makes a live gateway, then ends, or forks, with it.

    python -m tests.lifecycle.child MODE

It says READY on its standard output once the gateway is in the state that MODE names, and as its very
last act which of our threads are still there.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import multiprocessing
import os
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.gateway.loading import Loader, Serving
    from mlx_notebook.gateway.thread import Loading

THREADS = "threads left:"


def say_who_is_left() -> None:
    """Registered before anything of ours is imported, so that it runs after everything of ours."""
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("mlx-notebook")]
    print(THREADS, left, flush=True)


def live_gateway() -> Any:
    """A gateway over a small model."""
    from mlx_notebook.gateway.gateway import Gateway
    from tests.small_models import small

    return Gateway.from_loaded(*small("llama"))


def submit(gateway: Any, rows: int) -> list[Any]:
    """Long rows."""
    from tests.small_models import random_prompt

    return [gateway.submit(random_prompt(40, seed=n), raw=True, max_tokens=400) for n in range(rows)]


def wait_till_it_writes(handle: Any) -> None:
    """Return once the row has said something."""
    next(iter(handle))


# ---------------------------------------------------------------- exits


def idle() -> None:
    gateway = live_gateway()
    submit(gateway, 1)[0].cancel()
    gateway.wait_idle()
    keep(gateway)


def running() -> None:
    gateway = live_gateway()
    wait_till_it_writes(submit(gateway, 1)[0])
    keep(gateway)


def queued() -> None:
    gateway = live_gateway()
    wait_till_it_writes(submit(gateway, 20)[0])
    keep(gateway)


def two() -> None:
    for _ in range(2):
        gateway = live_gateway()
        submit(gateway, 2)
        keep(gateway)


def forgotten() -> None:
    wait_till_it_writes(submit(live_gateway(), 1)[0])


def closed() -> None:
    gateway = live_gateway()
    wait_till_it_writes(submit(gateway, 2)[0])
    gateway.close()


def lease_held() -> None:
    """Another thread holds the device for ever, and rows wait for it."""
    gateway = live_gateway()
    held = threading.Event()

    def hold() -> None:
        with gateway.lease():
            held.set()
            threading.Event().wait()

    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    submit(gateway, 3)
    keep(gateway)


def lease_entered() -> None:
    """The main thread ends inside its own lease."""
    gateway = live_gateway()
    block = gateway.lease()
    block.__enter__()
    submit(gateway, 3)
    keep(gateway, block)


def waiting() -> None:
    """Other threads wait for rows as the process ends."""
    gateway = live_gateway()
    handles = submit(gateway, 3)
    for handle in handles:
        threading.Thread(target=handle.exception, daemon=True).start()
    wait_till_it_writes(handles[0])
    keep(gateway)


def loading() -> None:
    """A load is under way in another thread, and computes."""
    import mlx.core as mx

    from mlx_notebook.gateway import loading as loaders
    from mlx_notebook.gateway.gateway import Gateway
    from tests.small_models import small

    began = threading.Event()
    pair = small("llama")  # here, so that the thread that asks does nothing with MLX itself

    def slow(model: Any, tokenizer: Any, serving: Serving) -> Loader:  # noqa: ARG001 - stands for one that uses them
        def load(loading: Loading) -> Any:
            while True:
                mx.eval(mx.ones((300, 300)) @ mx.ones((300, 300)))
                began.set()
                loading.check()

        return load

    loaders.loader_of_loaded = slow

    def load_it() -> None:
        with contextlib.suppress(InterruptedError):
            Gateway.from_loaded(*pair)

    threading.Thread(target=load_it, daemon=True).start()
    began.wait()


_kept: list[Any] = []


def keep(*things: Any) -> None:
    """Until the process ends."""
    _kept.extend(things)


EXITS: dict[str, Callable[[], None]] = {
    "idle": idle,
    "running": running,
    "queued": queued,
    "two": two,
    "forgotten": forgotten,
    "closed": closed,
    "lease_held": lease_held,
    "lease_entered": lease_entered,
    "waiting": waiting,
    "loading": loading,
}


# ---------------------------------------------------------------- forks


def forked(start: Callable[[Callable[[], None]], int]) -> None:
    """Fork several times while rows run and others read them; each child must find every call refused."""
    gateway = live_gateway()
    finished = gateway.submit([5, 6, 7], raw=True, max_tokens=3)
    finished.result()
    handles: list[Any] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            for handle in handles[-5:]:
                handle.progress()
                _ = handle.text_so_far
            gateway.stats()

    readers = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(4):
        handles += submit(gateway, 5)
        wait_till_it_writes(handles[-5])
        code = start(partial(everything_is_refused, gateway, handles[-5:], finished))
        assert code == 0, f"the child ended with {code}"
    over.set()
    for reader in readers:
        reader.join()
    for handle in handles:
        assert handle.result().finish_reason in {"length", "stop"}, "the parent's rows went on"
    gateway.close()


def by_os(child: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        child()
        sys.exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def by_os_while_locks_are_held(child: Callable[[], None]) -> int:
    """As by_os, in the worst moment: every lock of ours is held by another thread, which the child has not."""
    from mlx_notebook.gateway.lease import device_lease
    from mlx_notebook.gateway.registry import registry

    engines = list(registry._engines)
    records = [handle._record for handle in registry.handles()]
    locks = [registry._lock, device_lease()._lock]
    locks += [lock for engine in engines for lock in (engine.intake._lock, engine._places._lock)]
    locks += [record._lock for record in records]
    held, forked_now = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in reversed(locks):
                stack.enter_context(lock)
            held.set()
            forked_now.wait()

    def grab() -> None:
        threading.Thread(target=hold).start()
        held.wait()

    _just_before_a_fork.append(grab)
    pid = os.fork()
    if pid == 0:
        child()
        sys.exit(0)
    _just_before_a_fork.remove(grab)
    forked_now.set()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


_just_before_a_fork: list[Callable[[], None]] = []


def run_what_comes_just_before() -> None:
    """Registered before anything of ours is imported: such functions run in reverse order, so this one is last."""
    for call in _just_before_a_fork:
        call()


def by_multiprocessing(child: Callable[[], None]) -> int:
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


WAITS: dict[str, Callable[[Any], Any]] = {
    "result": lambda handle: handle.result(),
    "text": lambda handle: handle.text,
    "deltas": list,
    "await": lambda handle: asyncio.run(handle._await()),
}


def is_refused(call: Callable[[], Any]) -> bool:
    from mlx_notebook.errors import GatewayClosed, GatewayDead

    try:
        call()
    except (GatewayDead, GatewayClosed):
        return True
    return False


def everything_is_refused(gateway: Any, handles: list[Any], finished: Any) -> None:
    """In the child: each call of ours raises at once, or says what is known without waiting."""
    handles = [handle for handle in handles if handle.status != "finished"]  # before the fork
    assert handles
    import mlx_notebook as mn
    from mlx_notebook.errors import MlxNotebookError
    from tests.small_models import random_prompt

    refused: dict[str, Callable[[], Any]] = {
        "submit": lambda: gateway.submit("a"),
        "generate": lambda: gateway.generate("a"),
        "place": lambda: gateway.place("a"),
        "count_tokens": lambda: gateway.count_tokens("a"),
        "estimate": lambda: gateway.estimate("a"),
        "lease": lambda: gateway.lease().__enter__(),
        "run_exclusive": lambda: gateway.run_exclusive(lambda: 1),
        "restart": gateway.restart,
        "model": lambda: gateway.model,
        "Gateway": lambda: mn.Gateway("smollm2"),
        "from_loaded": lambda: mn.Gateway.from_loaded(None, None),
        "mn.submit": lambda: mn.submit(random_prompt(3), raw=True),
    }
    for handle in handles:
        refused |= {f"{what} {handle.id}": partial(call, handle) for what, call in WAITS.items()}
    for name, call in refused.items():
        assert is_refused(call), name
    for handle in handles:
        assert handle.done()
        assert not handle.cancel()
        assert isinstance(handle.exception(), MlxNotebookError)
        assert repr(handle)
        assert handle.progress().status == "failed"
    assert finished.result().generated_tokens == 3
    assert len(list(mn.as_completed(handles))) == len(handles)
    assert not mn.wait(handles).not_done
    assert gateway.wait_idle()
    assert gateway.closed
    assert repr(gateway)
    assert gateway.stats().queued_rows == 0
    gateway.close()
    # A thread of the child's may get the number that the parent's engine thread has: it is nobody's engine here.
    worker = threading.Thread(target=lambda: mn.Gateway.from_backend(mn.ScriptedBackend()).close())
    worker.start()
    worker.join()


FORKS: dict[str, Callable[[], None]] = {
    "os_fork": lambda: forked(by_os),
    "os_fork_with_locks_held": lambda: forked(by_os_while_locks_are_held),
    "multiprocessing_fork": lambda: forked(by_multiprocessing),
}

if __name__ == "__main__":
    atexit.register(say_who_is_left)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=run_what_comes_just_before)
    mode = sys.argv[1]
    (EXITS | FORKS)[mode]()
    print("READY", flush=True)
