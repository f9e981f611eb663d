"""Handles: a Future's manners, live text, and several at once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

import mlx_notebook as mn
from mlx_notebook.engine.backend import ScriptedBackend, scripted_texts
from mlx_notebook.errors import Cancelled, RowFailed
from mlx_notebook.gateway.handles import Handles, as_completed, wait
from mlx_notebook.gateway.hooks import hooks
from tests.gateway.fakes import Stepped, in_thread, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.gateway.gateway import Gateway

    Make = Callable[..., Gateway]


@pytest.fixture
def stepped(gateway_of: Make) -> tuple[Gateway, Stepped]:
    backend = Stepped(script=scripted_texts(["one", " two", " three"]))
    return gateway_of(backend), backend


# ---------------------------------------------------------------- one


def test_its_states(stepped: tuple[Gateway, Stepped]) -> None:
    gateway, backend = stepped
    first, second = gateway.submit("ab", max_tokens=2), gateway.submit("ab", max_tokens=2)
    backend.next()
    assert (first.status, first.running(), first.done(), first.cancelled()) == ("prefill", True, False, False)
    assert (second.status, second.running()) == ("queued", False)
    backend.go()
    backend.until("decode")
    assert first.status == "decode"
    backend.free()
    second.result()
    assert (first.status, first.running(), first.done(), first.cancelled()) == ("finished", False, True, False)


def test_result_in_full(gateway_of: Make) -> None:
    gateway = gateway_of(ScriptedBackend(script=scripted_texts(["one", " two"])), name="mine")
    handle = gateway.submit("abc", max_tokens=4, seed=7)
    result = handle.result()
    assert (result.text, result.token_ids) == ("one twoone two", (111, 32, 111, 32))
    assert (result.finish_reason, result.finish_detail) == ("length", "max_tokens")
    assert (result.prompt_tokens, result.cached_tokens, result.generated_tokens) == (3, 0, 4)
    assert (result.seed, result.model, result.logprobs) == (7, "scripted", None)
    assert result.placement == handle.placement
    assert handle.result() == result
    assert handle.exception() is None
    assert (handle.text, handle.token_ids, handle.logprobs) == (result.text, result.token_ids, None)
    assert handle.stats["generated_tokens"] == 4
    assert handle.stats["finish_reason"] == "length"
    assert str(handle) == str(result) == result.text
    assert (handle.prompt_text, handle.model, handle.options["seed"]) == ("abc", "scripted", 7)


def test_a_timeout_is_the_builtin_one_and_the_row_goes_on(stepped: tuple[Gateway, Stepped]) -> None:
    gateway, backend = stepped
    handle = gateway.submit("a", max_tokens=2)
    backend.next()
    for call in (handle.result, handle.exception):
        with pytest.raises(TimeoutError, match="goes on"):
            call(timeout=0.01)
    assert not handle.done()
    backend.free()
    assert handle.result(timeout=None).finish_reason == "length"
    assert handle.result(timeout=0).finish_reason == "length"  # over is over, whatever the timeout


def test_the_repr_and_progress_never_wait(stepped: tuple[Gateway, Stepped]) -> None:
    gateway, backend = stepped
    handle = gateway.submit("abcd", max_tokens=20)
    backend.next()
    assert repr(handle) == f"<Handle {handle.id} prefill: 0 tokens ''>"
    backend.go()
    for _ in range(2):
        backend.until("decode")
        backend.go()
    backend.next()
    progress = handle.progress()
    assert (progress.status, progress.generated_tokens, progress.prompt_tokens) == ("decode", 2, 4)
    assert (progress.finish_reason, progress.error, progress.waiting) == (None, None, "")
    assert progress.ttft_ms is not None
    assert repr(handle) == f"<Handle {handle.id} decode: 2 tokens 'one two'>"
    assert handle.text_so_far == "one two"
    assert (handle.text_from(3), handle.text_from(7), handle.text_from(100)) == (" two", "", "")
    handle.cancel()
    backend.free()
    with pytest.raises(Cancelled):
        handle.result()
    assert handle.progress().finish_detail == "user"


def test_a_long_text_is_cut_in_the_repr(gateway_of: Make) -> None:
    handle = gateway_of(ScriptedBackend(script=lambda *_: "word\n ")).submit("a", max_tokens=100)
    handle.result()
    assert len(repr(handle)) < 120
    assert "\n" not in repr(handle)


def test_deltas_come_while_it_writes_and_are_the_text(stepped: tuple[Gateway, Stepped]) -> None:
    gateway, backend = stepped
    handle = gateway.submit("a", max_tokens=3)
    deltas = iter(handle)
    backend.until("decode")
    backend.go()
    backend.next()
    first = next(deltas)  # the engine stands still now: this is what was there
    assert first == "one"
    backend.free()
    assert first + "".join(deltas) == handle.text == "one two three"


def test_two_readers_each_get_all_of_it(stepped: tuple[Gateway, Stepped]) -> None:
    gateway, backend = stepped
    handle = gateway.submit("a", max_tokens=30)
    backend.next()
    readers = [in_thread(lambda: list(handle)) for _ in range(3)]
    backend.free()
    assert {"".join(reader.result()) for reader in readers} == {handle.text}


def test_deltas_of_a_failed_row_end_with_its_error(gateway_of: Make) -> None:
    calls: list[int] = []

    def on_token(*_: object) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("enough")

    seen: list[str] = []
    with pytest.raises(RowFailed, match="enough"):
        seen.extend(gateway_of().submit("a", on_token=on_token))
    assert len("".join(seen)) == len(calls)  # tokens that come together are one delta


def test_leaving_an_iteration_leaves_the_row(stepped: tuple[Gateway, Stepped]) -> None:
    gateway, backend = stepped
    backend.free()
    handle = gateway.submit("a", max_tokens=20)
    for _ in handle:
        break
    assert handle.result().generated_tokens == 20


def test_done_callbacks_before_and_after_the_end(gateway_of: Make) -> None:
    gateway = gateway_of()
    called: list[tuple[Any, str]] = []
    with gateway.lease():
        handle = gateway.submit("a", max_tokens=1)
        handle.add_done_callback(lambda h: called.append((h, threading.current_thread().name)))
    handle.result()
    wait_for(lambda: len(called) == 1)
    handle.add_done_callback(lambda h: called.append((h, threading.current_thread().name)))
    assert [h for h, _ in called] == [handle, handle]
    assert called[0][1].startswith("mlx-notebook engine")
    assert called[1][1] == threading.current_thread().name


def test_idle_means_that_handles_are_over(gateway_of: Make) -> None:
    gateway = gateway_of()
    for _ in range(50):
        handles = [gateway.submit("a", max_tokens=1) for _ in range(4)]
        assert gateway.wait_idle()
        assert all(handle.done() for handle in handles)


def test_a_gateway_is_busy_till_the_last_callback_has_run(gateway_of: Make) -> None:
    gateway = gateway_of()
    seen: list[bool] = []
    with gateway.lease():
        handle = gateway.submit("a", max_tokens=1)
        handle.add_done_callback(lambda _: seen.append(gateway.busy))
    assert gateway.wait_idle()
    assert seen == [True]
    assert handle.done()


def test_as_completed_does_not_hang_on_a_callback_that_never_came(stepped: tuple[Gateway, Stepped]) -> None:
    gateway, backend = stepped
    handles = [gateway.submit("a", max_tokens=2) for _ in range(2)]
    completed = as_completed(handles)
    backend.next()
    waiting = in_thread(lambda: list(completed))
    wait_for(lambda: len(handles[1]._record._callbacks) == 1)
    handles[1]._record._callbacks.clear()
    backend.free()
    assert waiting.result() == handles


def test_show_prints_without_a_host_and_asks_the_host_where_there_is_one(
    gateway_of: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    handle = gateway_of(ScriptedBackend(script=lambda *_: "\x1b[2J")).submit("a", max_tokens=3)
    assert handle.text == "\x1b[2J" * 3
    handle.show()
    assert capsys.readouterr().out == "[2J[2J[2J\n"  # no text of a model's may clear the screen
    shown: list[Any] = []
    hooks.show = shown.append
    handle.show()
    assert shown == [handle]


def test_log_probabilities_if_asked_for(gateway_of: Make) -> None:
    gateway = gateway_of()
    assert gateway.submit("a", max_tokens=2, logprobs=True).result().logprobs == ()  # a script has none
    assert gateway.submit("a", max_tokens=2).result().logprobs is None


# ---------------------------------------------------------------- several


def test_a_list_of_prompts_and_samples(gateway_of: Make) -> None:
    gateway = gateway_of()
    handles = gateway.submit(["a", "bc"], max_tokens=2, n=2, seed=10)
    assert isinstance(handles, Handles)
    assert [h.prompt_text for h in handles] == ["a", "a", "bc", "bc"]
    assert [h.options["seed"] for h in handles] == [10, 11, 10, 11]
    results = handles.results()
    assert [r.generated_tokens for r in results] == [2] * 4
    assert handles.done()
    assert isinstance(handles[1:], Handles)
    assert handles[0] is next(iter(handles))
    assert repr(handles).count("<Handle") == 4
    assert len(gateway.generate(["a", "b"], max_tokens=1)) == 2


def test_results_share_one_timeout(stepped: tuple[Gateway, Stepped]) -> None:
    gateway, backend = stepped
    handles = gateway.submit(["a", "b"], max_tokens=2)
    backend.next()
    with pytest.raises(TimeoutError):
        handles.results(timeout=0.01)
    assert not any(handle.cancelled() for handle in handles)
    backend.free()
    handles.results()


def test_cancel_all(stepped: tuple[Gateway, Stepped]) -> None:
    gateway, backend = stepped
    handles = gateway.submit(["a"] * 3, max_tokens=20)
    backend.next()
    assert handles.cancel() == 3
    backend.free()
    assert all(isinstance(handle.exception(), Cancelled) for handle in handles)
    assert handles.cancel() == 0


def test_as_completed_in_the_order_of_ending(stepped: tuple[Gateway, Stepped]) -> None:
    gateway, backend = stepped
    handles = [gateway.submit("a", max_tokens=2) for _ in range(3)]
    backend.next()
    handles[1].cancel()
    backend.free()
    assert list(as_completed([*handles, handles[0]])) == [handles[1], handles[0], handles[2]]
    assert sorted(h.id for h in as_completed(handles)) == [h.id for h in handles]
    assert list(as_completed([])) == []


def test_as_completed_times_out(stepped: tuple[Gateway, Stepped]) -> None:
    gateway, backend = stepped
    handles = [gateway.submit("a", max_tokens=2) for _ in range(2)]
    backend.next()
    with pytest.raises(TimeoutError, match="2 of 2 requests"):
        list(as_completed(handles, timeout=0.01))
    backend.free()


def test_wait_as_concurrent_futures_do(stepped: tuple[Gateway, Stepped]) -> None:
    gateway, backend = stepped
    handles = [gateway.submit("a", max_tokens=2) for _ in range(3)]
    backend.next()
    assert wait(handles, timeout=0.01) == (set(), set(handles))
    handles[2].cancel()
    backend.go()
    done, left = wait(handles, return_when="FIRST_COMPLETED")
    assert done == {handles[2]}
    assert left == set(handles[:2])
    backend.free()
    assert wait(handles).not_done == set()
    with pytest.raises(ValueError, match="FIRST_EXCEPTION"):
        wait(handles, return_when="SOMETIME")  # type: ignore[arg-type]


def test_wait_for_the_first_exception_passes_over_the_cancelled(stepped: tuple[Gateway, Stepped]) -> None:
    gateway, backend = stepped
    first = gateway.submit("a", max_tokens=2)
    backend.next()
    cancelled = gateway.submit("a", max_tokens=2)
    failing = gateway.submit("a", on_token=lambda *_: 1 / 0)
    last = gateway.submit("a", on_token=lambda *_: hold.wait(), max_tokens=2)
    hold = threading.Event()
    cancelled.cancel()
    backend.free()
    done, left = wait([first, cancelled, failing, last], return_when="FIRST_EXCEPTION")
    hold.set()
    assert failing in done
    assert left == {last}


def test_a_frame_keeps_what_failed_rows_had(gateway_of: Make) -> None:
    gateway = gateway_of(ScriptedBackend(script=lambda *_: "x"))
    with gateway.lease():
        fine = gateway.submit("a", max_tokens=2)
        bad = gateway.submit("a", max_tokens=2, on_token=lambda *_: 1 / 0)
        cut = gateway.submit("a", max_tokens=2)
        cut.cancel()
        wait_for(cut.done)
    frame = Handles([fine, bad, cut]).to_frame()
    assert list(frame["text"]) == ["xx", "x", ""]
    assert list(frame["finish_reason"]) == ["length", "error", "cancelled"]
    assert list(frame["seed"]) == [h.options["seed"] for h in (fine, bad, cut)]
    assert frame["error"].isna().tolist() == [True, False, False]
    assert "ZeroDivisionError" in frame["error"][1]
    assert list(Handles().to_frame().columns) == list(frame.columns)


def test_handles_by_number_and_the_last(gateway_of: Make) -> None:
    handle = gateway_of().submit("a", max_tokens=1)
    assert mn.get(handle.id) is handle
    assert mn.last is handle
    handle.result()
    assert mn.get(handle.id) is handle
    with pytest.raises(KeyError, match="no request has the number -1"):
        mn.get(-1)


def test_options_are_a_copy_at_every_depth(gateway_of: Make) -> None:
    asked: dict[str, Any] = {"stop": ["zz"], "logit_bias": {5: 1.0}, "logprobs": 2}
    handle = gateway_of().submit("abc", max_tokens=3, seed=7, **asked)
    held = handle.options
    handle.options["seed"] = 0
    handle.options["logit_bias"][5] = -1.0
    handle.options["stop"].append("y")
    handle.options.clear()
    assert handle.options == held
    result = handle.result()
    assert (result.seed, held["stop"], held["logit_bias"]) == (7, ["zz"], {5: 1.0})
    assert result.logprobs is not None
