"""What breaks elsewhere, by the number of its row in the log of public bug reports, and must not break here."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.core.events import Decode, RowOutcome, StepDone, StepFailed
from mlx_notebook.core.placement import Capabilities
from mlx_notebook.engine.backend import ScriptedBackend
from mlx_notebook.errors import Cancelled, OverContext, RowFailed
from mlx_notebook.gateway.gateway import Gateway
from tests.gateway.fakes import Stepped, in_thread, wait_for
from tests.small_models import random_prompt, small

if TYPE_CHECKING:
    from collections.abc import Callable

    Make = Callable[..., Gateway]


def test_b41_submitting_and_cancelling_from_many_threads_while_rows_run() -> None:
    """Elsewhere: shape errors in the worker on every later step, a stream error in the main thread."""
    model, tokenizer = small("llama")
    prompts = [random_prompt(n + 4, seed=n) for n in range(4)]
    with Gateway.from_loaded(model, tokenizer) as gateway:
        alone = [gateway.submit(prompt, raw=True, max_tokens=6).result().token_ids for prompt in prompts]

        def caller() -> list[bool]:
            same = []
            for number, prompt in enumerate(prompts):
                kept, cut = (gateway.submit(prompt, raw=True, max_tokens=6) for _ in range(2))
                cut.cancel()
                same.append(kept.result().token_ids == alone[number])
                assert isinstance(cut.exception(), Cancelled | None)
            return same

        callers = [in_thread(caller) for _ in range(4)]
        assert all(all(one.result()) for one in callers)
        assert gateway.stats().failed == 0


BAD_PROMPTS: list[tuple[Any, type[Exception]]] = [
    ("", ValueError),
    ([], ValueError),
    (None, TypeError),
    (5, TypeError),
    ([-1], ValueError),
    ([128], ValueError),
    ([1, "a"], ValueError),
    ("a" * 200, OverContext),
]


@pytest.mark.parametrize(("bad", "error"), BAD_PROMPTS, ids=lambda value: repr(value)[:12])
def test_b27_a_bad_prompt_is_refused_by_itself_and_its_siblings_go_on(
    gateway_of: Make, bad: Any, error: type[Exception]
) -> None:
    """Elsewhere: one empty prompt fails the whole call, and an id outside the vocabulary is read silently."""
    backend = Stepped(capabilities=Capabilities(vocab_size=128, context_length=100))
    gateway = gateway_of(backend)
    before = gateway.submit("a", max_tokens=2)
    backend.next()
    with pytest.raises(error):
        gateway.submit(bad)
    after = gateway.submit("b", max_tokens=2)
    backend.free()
    assert [row.result().generated_tokens for row in (before, after)] == [2, 2]
    assert gateway.stats().submitted == 2


def test_b27_in_a_list_the_bad_one_is_named_before_anything_is_queued(gateway_of: Make) -> None:
    gateway = gateway_of(ScriptedBackend(capabilities=Capabilities(vocab_size=128, context_length=100)))
    with pytest.raises(ValueError, match="empty") as caught:
        gateway.submit(["fine", "", "fine too"])
    assert caught.value.__notes__ == ["in prompt 1 of 3"]
    assert gateway.stats().submitted == 0


@pytest.mark.parametrize("max_tokens", [0, -1])
def test_b27_no_tokens_at_all_is_refused_by_name(gateway_of: Make, max_tokens: int) -> None:
    with pytest.raises(ValueError, match="max_tokens"):
        gateway_of().submit("a", max_tokens=max_tokens)


def test_b07_one_rows_error_takes_down_nobody_else(gateway_of: Make) -> None:
    gateway = gateway_of(ScriptedBackend(capabilities=Capabilities(vocab_size=0x110000, max_rows=4, continuous=True)))
    with gateway.lease():  # so that all four are in the batch together
        rows = [gateway.submit("a", max_tokens=9, on_token=(lambda *_: 1 / 0) if n == 1 else None) for n in range(4)]
    assert [type(row.exception()) for row in rows] == [type(None), RowFailed, type(None), type(None)]
    assert [row.result().generated_tokens for row in rows if row is not rows[1]] == [9, 9, 9]


def test_c01_a_reader_can_leave_and_others_can_ask_while_a_native_call_does_not_return(gateway_of: Make) -> None:
    """Elsewhere: blocked inside a native evaluation, no exception, nobody can tell."""
    backend = Stepped()
    gateway = gateway_of(backend)
    row = gateway.submit("a", max_tokens=2)
    backend.next()
    with pytest.raises(TimeoutError):
        row.result(timeout=0.01)
    silent = gateway.stats().silent_s
    wait_for(lambda: gateway.stats().silent_s > silent)  # how long the engine has been inside that call shows
    assert row.progress().status == "prefill"
    assert gateway.submit("b", max_tokens=1).progress().status == "queued"
    backend.free()
    row.result()


class FailsToExtract(ScriptedBackend):
    """What the row's own state does wrong comes back inside its outcome."""

    def decode(self, instruction: Decode) -> StepDone | StepFailed:
        done = super().decode(instruction)
        assert isinstance(done, StepDone)
        first = done.outcomes[0]
        if first.row_id != min(self._rows):
            return done
        failed = RowOutcome(first.row_id, None, error=("RuntimeError: cannot extract", "Traceback ..."))
        return StepDone(done.at_ns, done.began_ns, (failed, *done.outcomes[1:]))


def test_c03_a_failure_in_a_rows_state_ends_that_row_and_not_the_thread(gateway_of: Make) -> None:
    """Elsewhere: an exception in cache extraction kills the thread silently."""
    gateway = gateway_of(FailsToExtract(capabilities=Capabilities(vocab_size=0x110000, max_rows=2, continuous=True)))
    with gateway.lease():
        bad, good = gateway.submit("a", max_tokens=3), gateway.submit("a", max_tokens=3)
    with pytest.raises(RowFailed, match="cannot extract") as caught:
        bad.result()
    assert caught.value.result is not None
    assert caught.value.result.generated_tokens == 0
    assert isinstance(good.exception(), RowFailed)  # it was the oldest by then
    assert not gateway.closed


@pytest.mark.parametrize("stage", ["prefill", "decode"])
def test_c07_a_client_that_leaves_stops_the_work_at_the_next_chunk_or_step(gateway_of: Make, stage: str) -> None:
    """Elsewhere: the client is gone and generation goes on."""
    backend = Stepped()
    gateway = gateway_of(backend, prefill_chunk=1)
    row = gateway.submit("a" * 50, max_tokens=1000)
    backend.until(stage)
    row.cancel()
    backend.go()
    assert isinstance(row.exception(), Cancelled)
    waiting = threading.Event()
    gateway._engine.call_soon(lambda _at: waiting.set())
    waiting.wait()
    assert backend._points.empty()  # it stands before nothing more


def test_c07_on_a_real_model_too() -> None:
    model, tokenizer = small("llama")
    with Gateway.from_loaded(model, tokenizer, prefill_chunk=8) as gateway:
        row = gateway.submit(random_prompt(300), raw=True, max_tokens=200)
        wait_for(lambda: row.progress().prefilled >= 8)
        row.cancel()
        error = row.exception()
        assert isinstance(error, Cancelled)
        assert gateway.wait_idle()
        assert gateway.stats().kv_bytes == 0


def test_b10_a_bound_on_the_cache_is_refused_by_name_and_not_ignored(gateway_of: Make) -> None:
    """Elsewhere: taken, and without effect on most models; on the others a batch forgets the first tokens."""
    with pytest.raises(TypeError, match="max_kv_size"):
        gateway_of(ScriptedBackend(), max_kv_size=8)
    with pytest.raises(TypeError, match="max_kv_size"):
        gateway_of().submit("a", max_kv_size=8)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "qwen3_next"])
def test_b44_an_edited_last_message_and_a_next_turn_reuse_what_went_before(kind: str) -> None:
    """Elsewhere: all is computed again where a state cannot be cut back, as with windows and recurrent layers."""
    history = [{"role": "system", "content": "the fox and the hen went over the hill " * 2}]
    asked = [*history, {"role": "user", "content": "and then into the river"}]
    edited = [*history, {"role": "user", "content": "there was another one in the rain"}]
    more = [{"role": "assistant", "content": "the man on the moon"}, {"role": "user", "content": "and the other"}]
    with Gateway.from_loaded(*small(kind)) as gateway:
        first, again, turn = (gateway.generate(one, max_tokens=2) for one in (asked, edited, [*asked, *more]))
        hits = gateway.stats().prompt_cache.hits
    assert first.cached_tokens == 0
    assert again.cached_tokens > 20
    assert turn.cached_tokens > again.cached_tokens
    assert hits == 2


def test_c17_two_models_in_turn_keep_their_prompts_apart() -> None:
    """Elsewhere: what one model had kept of a prompt was handed to the other."""
    prompt = random_prompt(60, seed=17)
    how: dict[str, Any] = {"raw": True, "max_tokens": 6}
    models = [small("llama", seed) for seed in range(2)]
    with Gateway.from_loaded(*models[0], name="one") as one, Gateway.from_loaded(*models[1], name="two") as two:
        alone = [gateway.generate(prompt, cache_prompt=False, **how).token_ids for gateway in (one, two)]
        for _ in range(3):
            assert [gateway.generate(prompt, **how).token_ids for gateway in (one, two)] == alone
        assert [gateway.stats().prompt_cache.hits for gateway in (one, two)] == [2, 2]
    assert alone[0] != alone[1]
