from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from mlx_notebook.notebook import publisher as module
from mlx_notebook.notebook.publisher import BURST, MESSAGES_PER_S, Publisher
from tests.gateway.fakes import in_thread
from tests.gateway.interrupting import at_every_point

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def running() -> Iterator[Publisher]:
    publisher = Publisher()
    yield publisher
    publisher.shutdown()


class CountingView:
    """Ends after so many ticks; remembers who called."""

    def __init__(self, ticks: int, at_tick: Callable[[int], None] | None = None) -> None:
        self.left = ticks
        self.count = 0
        self.stopped = 0
        self.callers: set[str] = set()
        self.ended = threading.Event()
        self._at_tick = at_tick

    def tick(self) -> bool:
        self.callers.add(threading.current_thread().name)
        self.count += 1
        self.left -= 1
        if self._at_tick is not None:
            self._at_tick(self.count)
        if self.left <= 0:
            self.ended.set()
        return self.left > 0

    def stop(self) -> None:
        self.callers.add(threading.current_thread().name)
        self.stopped += 1


def test_ticks_a_view_on_its_own_thread_until_it_has_no_more_to_say(running: Publisher) -> None:
    view = CountingView(3)
    running.follow(view)
    view.ended.wait()
    assert view.callers == {"mlx-notebook-publisher"}
    while running.following:
        time.sleep(0.001)
    assert view.count == 3
    assert view.stopped == 0


def test_no_thread_before_the_first_view_and_one_for_all() -> None:
    before = threading.active_count()
    publisher = Publisher()
    assert threading.active_count() == before
    views = [CountingView(2) for _ in range(5)]
    for view in views:
        publisher.follow(view)
    for view in views:
        view.ended.wait()
    assert threading.active_count() == before + 1
    publisher.shutdown()
    assert threading.active_count() == before


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(3)])
def test_a_view_that_raises_is_left_and_reported_once(
    running: Publisher, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    def fail(_count: int) -> None:
        raise error

    broken, sound = CountingView(9, fail), CountingView(4)
    running.follow(broken)
    running.follow(sound)
    sound.ended.wait()
    assert broken.count == 1
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "their text is in the handle" in caplog.text
    assert type(error).__name__ in caplog.text


def test_who_asks_during_the_very_last_tick_is_ticked_again(running: Publisher) -> None:
    ticked_again = threading.Event()

    def ask_again(count: int) -> None:
        if count == 1:
            running.follow(view)
        else:
            ticked_again.set()

    view = CountingView(1, ask_again)
    running.follow(view)
    ticked_again.wait()


def test_many_views_share_the_budget_in_turn(running: Publisher) -> None:
    began = time.monotonic()
    views = [CountingView(8, lambda _count: running.spend()) for _ in range(60)]
    for view in views:
        running.follow(view)
    for view in views:
        view.ended.wait()
    elapsed = time.monotonic() - began
    messages = 60 * 8
    assert messages <= MESSAGES_PER_S * elapsed + BURST + 1


def test_views_come_in_turn(running: Publisher) -> None:
    order: list[int] = []
    all_there = threading.Event()

    def note(i: int) -> None:
        all_there.wait()
        order.append(i)

    views = [CountingView(5, lambda _count, i=i: note(i)) for i in range(10)]  # type: ignore[misc]
    for view in views:
        running.follow(view)
    all_there.set()
    for view in views:
        view.ended.wait()
    for turn in range(5):
        assert len(set(order[turn * 10 : turn * 10 + 10])) == 10


def test_shutdown_lets_live_views_say_a_last_word_and_takes_no_more(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(CountingView):
        def stop(self) -> None:
            raise OSError("the socket is closed")

    publisher, ticked = Publisher(), threading.Event()
    live, broken = CountingView(10**9, lambda _count: ticked.set()), Broken(10**9)
    publisher.follow(broken)
    publisher.follow(live)
    ticked.wait()
    publisher.shutdown(timeout=60)
    assert live.stopped == 1
    assert live.callers == {"mlx-notebook-publisher"}
    assert "the socket is closed" in caplog.text
    late = CountingView(1)
    publisher.follow(late)
    assert publisher.following == 0
    assert late.count == 0


def test_the_process_has_one_and_gets_a_new_one_after_shutdown() -> None:
    first = module.publisher()
    assert module.publisher() is first
    module.shutdown()
    second = module.publisher()
    assert second is not first
    module.shutdown()
    module.shutdown()


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the points are those of CPython 3.11's instructions")
def test_wherever_an_interrupt_lands_in_a_cell_that_follows_the_others_are_ticked(running: Publisher) -> None:
    def in_a_cell() -> None:
        running.follow(CountingView(1))
        running.spend(0)

    points = 0
    for where in at_every_point(in_a_cell):
        points += 1
        view = CountingView(1)
        in_thread(partial(running.follow, view)).result()
        view.ended.wait()
        assert view.count == 1, where
    assert points > 5


EXIT = """
import atexit
from mlx_notebook.notebook.publisher import publisher
class View:
    def tick(self): return True
    def stop(self): print("last word", flush=True)
publisher().follow(View())
"""

FORK = """
import os, threading
from mlx_notebook.notebook import publisher as module
class View:
    def tick(self): return True
    def stop(self): print("last word of", "parent" if os.getpid() == parent else "child", flush=True)
parent = os.getpid()
first = module.publisher()
first.follow(View())
child = os.fork()
if child == 0:
    print("child has", threading.active_count(), "thread; the same publisher:", module.publisher() is first, flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""


def run(script: str) -> str:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_a_process_ends_with_a_live_view() -> None:
    assert run(EXIT) == "last word\n"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork on Windows")
def test_a_forked_child_has_no_publisher_of_its_parent() -> None:
    assert run(FORK) == "child has 1 thread; the same publisher: False\nlast word of parent\n"
