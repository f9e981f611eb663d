"""What is known of the page, and that an interrupted wait for it keeps nobody from telling."""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import comm
import pytest
from comm.base_comm import BaseComm

from mlx_notebook.doctor import doctor
from mlx_notebook.notebook import frontend
from tests.gateway.fakes import in_thread, wait_for
from tests.gateway.interrupting import at_every_point

if TYPE_CHECKING:
    from collections.abc import Iterator

    from IPython.core.interactiveshell import InteractiveShell


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the points are those of CPython 3.11's instructions")
def test_wherever_an_interrupt_lands_in_the_wait_a_page_can_still_say_hello() -> None:
    made: list[frontend._Page] = []

    def wait() -> None:
        made.append(frontend._Page())
        made[-1].heard.wait(0.001)

    for where in at_every_point(wait):
        if made:
            in_thread(made[-1].said_hello).result()
            assert made[-1].heard.is_set(), where
    assert len(made) > 5


# ---------------------------------------------------------------- the doctor asks the page


class Page:
    """The other end of the comms that widgets open, as a front end would be."""

    def __init__(self) -> None:
        self.open: dict[str, BaseComm] = {}
        self.made: list[dict[str, Any]] = []

    def comm(self, *args: Any, **keys: Any) -> BaseComm:
        page = self

        class Ours(BaseComm):
            def publish_msg(self, msg_type: str, data: Any = None, *_: Any, **__: Any) -> None:
                if msg_type == "comm_open":
                    page.open[self.comm_id] = self
                    page.made.append(data["state"])
                elif msg_type == "comm_close":
                    del page.open[self.comm_id]

        return Ours(*args, **keys)

    def say_hello(self) -> None:
        """As the widget's script does once the page has made its model."""
        content = {"data": {"method": "custom", "content": {"kind": "hello"}}}
        for each in list(self.open.values()):
            each.handle_msg({"content": content, "buffers": []})


@pytest.fixture
def page(shell: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """A page of a kernel: the shell says that it has one, and comms lead here."""
    made = Page()
    monkeypatch.setattr(shell, "kernel", SimpleNamespace(), raising=False)
    monkeypatch.setattr(comm, "create_comm", made.comm)
    frontend.forget()
    yield made
    frontend.forget()


def test_the_doctor_hears_a_page_that_answers_while_it_waits(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend, "page_answers", partial(frontend.page_answers, 1e6))
    waits = frontend._page.heard._bell

    def answer() -> None:
        wait_for(lambda: bool(waits._waiters))
        page.say_hello()

    answering = in_thread(answer)
    report = doctor()
    answering.result()
    assert ("page", "answers: live views work") in report.facts
    assert any(state.get("_model_name") == "AnyModel" for state in page.made)
    assert not page.open  # the question leaves nothing behind


def test_a_page_that_is_silent_is_a_finding_until_it_answers(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frontend, "page_answers", partial(frontend.page_answers, 0.0))
    report = doctor()
    assert ("page", "does not answer: answers are shown as text") in report.facts
    assert any("reload the page" in problem.mend for problem in report.problems)
    page.say_hello()
    assert ("page", "answers: live views work") in doctor().facts
