"""Bell and Latch: nobody misses a ring, nobody is woken for nothing, nothing is left in the list."""

from __future__ import annotations

import ast
from pathlib import Path

import mlx_notebook
from mlx_notebook.bell import Bell, Latch
from tests.gateway.fakes import in_thread, wait_for


def test_a_latch_that_is_up_does_not_wait() -> None:
    latch = Latch()
    assert not latch.wait(0)
    latch.set()
    assert latch.is_set()
    assert latch.wait(1e6)
    latch.clear()
    assert not latch.wait(0)


def test_setting_wakes_everybody() -> None:
    latch = Latch()
    waiting = [in_thread(lambda: latch.wait(1e6)) for _ in range(5)]
    wait_for(lambda: len(latch._bell._waiters) == 5)
    latch.set()
    assert all(one.result() for one in waiting)
    assert not latch._bell._waiters


def test_whoever_gives_up_leaves_nothing_behind() -> None:
    bell = Bell()
    assert not bell.wait_until(lambda: False, 0.001)
    assert not bell._waiters
    bell.ring()


def test_what_becomes_true_between_asking_and_sleeping_is_seen() -> None:
    bell = Bell()
    asked: list[bool] = []

    def true() -> bool:
        asked.append(len(asked) > 0)  # false when first asked, true from then on, and nobody rings
        return asked[-1]

    assert bell.wait_until(true, 1e6)
    assert not bell._waiters


def test_a_ring_that_changes_nothing_lets_the_waiter_look() -> None:
    bell = Bell()
    waiting = in_thread(lambda: bell.wait_until(lambda: False, 1e6))
    wait_for(lambda: len(bell._waiters) == 1)
    bell.ring()
    assert waiting.result() is False


def test_many_threads_at_once() -> None:
    latches = [Latch() for _ in range(200)]

    def wait_for_all() -> bool:
        return all(latch.wait(1e6) for latch in latches)

    def set_all() -> None:
        for latch in latches:
            latch.set()

    waiting = [in_thread(wait_for_all) for _ in range(4)]
    setting = [in_thread(set_all) for _ in range(2)]
    assert all(one.result() for one in waiting)
    for one in setting:
        one.result()
    assert not any(latch._bell._waiters for latch in latches)


# ---------------------------------------------------------------- what is used instead

PYTHON_LOCKED = {"Event", "Semaphore", "BoundedSemaphore", "Barrier"}


def test_nothing_of_ours_waits_on_what_an_interrupt_can_leave_locked() -> None:
    """A condition stands over a lock that is entered directly; there are no events and no semaphores."""
    for path in Path(mlx_notebook.__file__).parent.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        calls = [(ast.unparse(node.func), node) for node in nodes if isinstance(node, ast.Call)]
        assert not [call.lineno for name, call in calls if name.rpartition(".")[2] in PYTHON_LOCKED], path
        assert all(call.args for name, call in calls if name.endswith("Condition")), path
        conditions = {
            ast.unparse(node.targets[0])
            for node in nodes
            if isinstance(node, ast.Assign) and "threading.Condition(" in ast.unparse(node.value)
        }
        entered = {
            ast.unparse(item.context_expr) for node in nodes if isinstance(node, ast.With) for item in node.items
        }
        assert not conditions & entered, path
