"""Chats in Python: order, ends that are not kept, rewinding, and handles that are there before their turn."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import mlx_notebook as mn
from mlx_notebook.core.placement import Capabilities
from mlx_notebook.engine.backend import ScriptedBackend, scripted_texts
from mlx_notebook.errors import Cancelled, GatewayClosed, OverContext, RowFailed
from mlx_notebook.gateway.chats import Chat, Chats
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.hooks import Execution, hooks
from tests.frames.echo import Echo, capabilities

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Gate:
    """Rows stop at their first token until the gate opens."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()

    def script(self, _row: int, index: int) -> str:
        self.reached.set()
        self.opened.wait()
        return "ok"[index % 2]


def gateway(
    script: Callable[[int, int], str] | None = None, *, context: int = 32_768, rows: int = 1, **more: Any
) -> Gateway:
    able = Capabilities(vocab_size=0x110000, context_length=context, max_rows=rows, continuous=rows > 1)
    backend = ScriptedBackend(capabilities=able, script=script or scripted_texts("ok"))
    return Gateway.from_backend(backend, **more)


@pytest.fixture
def chat() -> Chat:
    return Chat("test")


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.opened.set()


@pytest.fixture
def in_cell() -> Iterator[Callable[[str, str], None]]:
    """Says which run of which cell the test plays."""
    before = hooks.execution

    def enter(cell: str, run: str) -> None:
        hooks.execution = lambda: Execution(cell, run)

    yield enter
    hooks.execution = before


def turns(chat: Chat) -> list[str]:
    return [f"{message['role'][0]}:{message['content']}" for message in chat.messages]


# ---------------------------------------------------------------- order


def test_turns_run_in_order_and_handles_come_at_once(chat: Chat, gate: Gate) -> None:
    with gateway(gate.script, rows=4) as gw:
        handles = [chat.submit(gw, text, max_tokens=2).handle for text in ("one", "two", "three")]
        assert gate.reached.wait(60)
        assert [handle.done() for handle in handles] == [False] * 3
        assert gw.stats().active_rows + gw.stats().prefill_rows == 1, "a turn is not even queued before its time"
        assert handles[2].progress().waiting == f"request {handles[1].id} comes first"
        assert mn.get(handles[2].id) is handles[2]
        gate.opened.set()
        assert [handle.result(60).text for handle in handles] == ["ok"] * 3
        assert handles[2].prompt_text == "one\nok\ntwo\nok\nthree"
    assert turns(chat) == ["u:one", "a:ok", "u:two", "a:ok", "u:three", "a:ok"]


def test_a_waiting_turn_streams_and_counts_as_open(chat: Chat, gate: Gate) -> None:
    with gateway(gate.script) as gw:
        chat.submit(gw, "one", max_tokens=2)
        second = chat.submit(gw, "two", max_tokens=2).handle
        assert gw.busy
        opener = threading.Timer(0.05, gate.opened.set)
        opener.start()
        assert "".join(second) == "ok"
        assert gw.wait_idle(60)
        opener.join()
        assert chat.messages[-1]["content"] == "ok"


def test_the_drawn_seed_is_the_one_that_holds(chat: Chat, gate: Gate) -> None:
    with gateway(gate.script) as gw:
        chat.submit(gw, "one", max_tokens=2)
        second = chat.submit(gw, "two", max_tokens=2).handle
        drawn = second.options["seed"]
        gate.opened.set()
        assert second.result(60).seed == drawn


def test_gateways_may_take_turns(chat: Chat, gate: Gate) -> None:
    with gateway(gate.script) as one, gateway() as other:
        chat.submit(one, "one", max_tokens=2)
        second = chat.submit(other, "two", max_tokens=2).handle
        gate.opened.set()
        assert second.result(60).text == "ok"
        assert second.prompt_text == "one\nok\ntwo"


# ---------------------------------------------------------------- what is not kept


def test_a_cancelled_turn_is_not_kept_and_the_next_goes_on_without_it(chat: Chat, gate: Gate) -> None:
    with gateway(gate.script) as gw:
        first = chat.submit(gw, "one", max_tokens=2).handle
        second = chat.submit(gw, "two", max_tokens=2).handle
        assert gate.reached.wait(60)
        assert first.cancel()
        gate.opened.set()
        assert second.result(60).text == "ok"
        assert second.prompt_text == "two"
    assert turns(chat) == ["u:two", "a:ok"]


def test_a_failed_turn_is_not_kept_and_the_next_goes_on_without_it(chat: Chat) -> None:
    with Gateway.from_backend(Echo(capabilities=capabilities(rows=1))) as gw:
        first = chat.submit(gw, "FAIL", max_tokens=3).handle
        second = chat.submit(gw, "two", max_tokens=3).handle
        with pytest.raises(RowFailed, match="made to fail"):
            first.result(60)
        second.result(60)
        assert second.prompt_text == "two"
    assert turns(chat)[0] == "u:two"


def test_a_turn_that_ran_out_of_time_is_not_kept(chat: Chat) -> None:
    with gateway() as gw:
        with pytest.raises(Cancelled):
            chat.submit(gw, "one", max_tokens=2, deadline=1e-9).handle.result(60)
        assert chat.messages == []
        chat.submit(gw, "two", max_tokens=2).handle.result(60)
    assert turns(chat) == ["u:two", "a:ok"]


def test_a_cut_answer_is_kept(chat: Chat) -> None:
    with gateway() as gw:
        chat.submit(gw, "one", max_tokens=1).handle.result(60)
    assert turns(chat) == ["u:one", "a:o"]


def test_a_waiting_turn_is_cancelled_at_once(chat: Chat, gate: Gate) -> None:
    with gateway(gate.script) as gw:
        first = chat.submit(gw, "one", max_tokens=2).handle
        second = chat.submit(gw, "two", max_tokens=2).handle
        assert second.cancel()
        assert second.done()
        assert not second.cancel()
        with pytest.raises(Cancelled):
            second.result(0)
        gate.opened.set()
        first.result(60)
        assert gw.wait_idle(60)
        assert gw.stats().submitted == 1
    assert turns(chat) == ["u:one", "a:ok"]


def test_closing_settles_a_waiting_turn(chat: Chat, gate: Gate) -> None:
    gw = gateway(gate.script)
    chat.submit(gw, "one", max_tokens=2)
    second = chat.submit(gw, "two", max_tokens=2).handle
    assert gate.reached.wait(60)
    threading.Timer(0.05, gate.opened.set).start()
    gw.close()
    with pytest.raises(Cancelled, match="gateway was closed"):
        second.result(0)
    with pytest.raises(GatewayClosed):
        chat.submit(gw, "three")
    assert chat.messages == []


def test_what_only_the_history_makes_too_long_fails_its_turn(chat: Chat, gate: Gate) -> None:
    with gateway(gate.script, context=20) as gw:
        chat.submit(gw, "a" * 10, max_tokens=2)
        second = chat.submit(gw, "b" * 10, max_tokens=2).handle
        gate.opened.set()
        with pytest.raises(RowFailed, match="context is 20"):
            second.result(60)
        assert gw.wait_idle(60)
    assert len(chat.messages) == 2


def test_what_is_wrong_at_once_raises_and_changes_nothing(chat: Chat) -> None:
    with gateway(context=20) as gw:
        chat.submit(gw, "one", max_tokens=2).handle.result(60)
        with pytest.raises(OverContext):
            chat.submit(gw, "b" * 30)
        with pytest.raises(TypeError, match="did you mean 'temperature'"):
            chat.submit(gw, "b", temprature=1)
        for wrong in ({"raw": True}, {"n": 2}):
            with pytest.raises(ValueError, match="a turn of a chat takes one answer"):
                chat.submit(gw, "b", **wrong)
    assert len(chat) == 1


# ---------------------------------------------------------------- back


def test_a_cell_that_runs_again_goes_back_to_before_its_turn(chat: Chat, in_cell: Callable[[str, str], None]) -> None:
    with gateway() as gw:
        for number, cell in enumerate("abc"):
            in_cell(cell, f"run {number}")
            assert chat.submit(gw, cell, max_tokens=2).dropped == 0
            gw.wait_idle(60)
        in_cell("b", "run 9")
        assert chat.submit(gw, "b again", max_tokens=2).dropped == 2
        assert chat.submit(gw, "more in the same run", max_tokens=2).dropped == 0
        gw.wait_idle(60)
    assert turns(chat) == ["u:a", "a:ok", "u:b again", "a:ok", "u:more in the same run", "a:ok"]


def test_going_back_cancels_what_runs_and_what_waits(
    chat: Chat, gate: Gate, in_cell: Callable[[str, str], None]
) -> None:
    with gateway(gate.script) as gw:
        in_cell("a", "run 1")
        chat.submit(gw, "one", max_tokens=2)
        in_cell("b", "run 2")
        second = chat.submit(gw, "two", max_tokens=2).handle
        assert gate.reached.wait(60)
        in_cell("a", "run 3")
        again, dropped = chat.submit(gw, "one again", max_tokens=2)
        assert dropped == 2
        assert second.cancelled()
        gate.opened.set()
        assert again.result(60).text == "ok"
    assert turns(chat) == ["u:one again", "a:ok"]


def test_undo_and_reset(chat: Chat) -> None:
    with gateway() as gw:
        for text in ("one", "two", "three"):
            chat.submit(gw, text, max_tokens=2).handle.result(60)
    assert chat.undo()
    assert turns(chat) == ["u:one", "a:ok", "u:two", "a:ok"]
    assert chat.reset() == 2
    assert not chat.undo()
    assert chat.messages == []


def test_the_latest_system_message_holds(chat: Chat) -> None:
    with gateway() as gw:
        chat.submit(gw, "one", system="S", max_tokens=2).handle.result(60)
        second = chat.submit(gw, "two", max_tokens=2).handle
        assert second.prompt_text == "S\none\nok\ntwo"
        second.result(60)
        third = chat.submit(gw, "three", system="T", max_tokens=2).handle
        assert third.prompt_text == "T\none\nok\ntwo\nok\nthree"
        third.result(60)
        chat.undo()
        assert chat.messages[0] == {"role": "system", "content": "S"}


def test_messages_are_a_copy(chat: Chat) -> None:
    with gateway() as gw:
        chat.submit(gw, "one", max_tokens=2).handle.result(60)
    chat.messages.clear()
    chat.messages[0]["content"] = "other"
    assert turns(chat) == ["u:one", "a:ok"]


def test_names() -> None:
    many = Chats()
    assert many.chat("fox") is many.chat("fox")
    assert list(many) == ["fox"]
    assert many["fox"] == []
    with pytest.raises(KeyError, match="no chat is called 'hen'; there are: fox"):
        many["hen"]
    many.forget("fox")
    many.forget("fox")
    assert len(many) == 0
    assert isinstance(mn.chats, Chats)


# ---------------------------------------------------------------- any order of doing things


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.sampled_from("abc"), st.sampled_from(["cancel last", "undo", "wait"])), max_size=14))
def test_whatever_is_done_the_history_is_that_of_the_kept_turns(
    in_cell: Callable[[str, str], None], doings: list[str]
) -> None:
    """A model of a chat: a list of (cell, text), cut as the rules say; the last turn saw exactly the kept ones."""
    chat = Chat("test")
    model: list[tuple[str, str]] = []
    prompts: dict[int, str] = {}
    with gateway() as gw:
        last = None
        for number, doing in enumerate(doings):
            if doing == "wait":
                gw.wait_idle(60)
            elif doing == "undo":
                gw.wait_idle(60)
                chat.undo()
                model = model[:-1]
            elif doing == "cancel last":
                if last is not None and last.cancel():
                    last.exception(60)
                    if last.cancelled():
                        model = [one for one in model if one[1] != prompts[last.id]]
            else:
                in_cell(doing, f"run {number}")
                text = f"{doing}{number}"
                place = next((i for i, one in enumerate(model) if one[0] == doing), len(model))
                model = [*model[:place], (doing, text)]
                last = chat.submit(gw, text, max_tokens=2).handle
                prompts[last.id] = text
        gw.wait_idle(60)
        assert [m["content"] for m in chat.messages if m["role"] == "user"] == [text for _, text in model]
        if last is not None and not last.cancelled() and model and model[-1][1] == prompts[last.id]:
            seen = "\nok\n".join(text for _, text in model)
            assert last.prompt_text == seen
