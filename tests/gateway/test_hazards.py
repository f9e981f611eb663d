"""What mlx-lm's own batching does wrong, hazard by hazard, and must not happen in ours: here on a real model.

The numbers are those of the log of public bug reports, section 3. `WHERE` says which test holds each of them, here
or beside its subject.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest

from mlx_notebook.core.ring import Kind
from mlx_notebook.errors import RowFailed, UnsupportedRequest
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.lease import device_lease
from tests.gateway.fakes import wait_for
from tests.small_models import VOCAB, random_prompt, small

if TYPE_CHECKING:
    from collections.abc import Iterator

TESTS = Path(__file__).resolve().parent.parent

WHERE: dict[int, tuple[str, ...]] = {
    1: (  # a step that fails leaves caches one token ahead
        "engine.test_batch_failures.test_a_rows_own_failure_is_its_own",
        "engine.test_batch_failures.test_a_failed_step_is_taken_again_from_committed_tokens",
        "gateway.test_many_rows.test_a_failed_forward_of_sixty_four_rows",
        "gateway.test_hazards.test_1_a_processor_that_returns_complex_numbers_fails_alone",
    ),
    2: (  # user code and forwards past a row's end
        "engine.test_backend_rows.test_no_processor_is_called_past_the_end_however_the_row_ends",
        "engine.test_backend_rows.test_no_forward_is_wasted_at_a_length_and_one_at_most_elsewhere",
        "gateway.test_hazards.test_2_user_code_is_asked_once_a_token_and_never_again",
    ),
    3: ("engine.test_batch_options.test_greedy_rows_without_log_probabilities_get_no_softmax",),
    4: (  # samplers grouped by identity
        "engine.test_batch_options.test_equal_settings_are_drawn_in_one_operation",
        "engine.test_batch_options.test_draws_depend_on_seed_and_number_and_on_no_neighbour",
        "engine.test_batch_options.test_rows_drawn_together_are_bitwise_the_rows_drawn_alone",
        "gateway.test_hazards.test_4_what_type_a_neighbours_processor_returns_changes_no_bit",
    ),
    5: (  # global random state
        "engine.test_draws.test_draws_neither_read_nor_move_the_global_generator",
        "gateway.test_hazards.test_5_a_seed_holds_whoever_draws_numbers_meanwhile",
    ),
    6: (  # ids outside the vocabulary
        "engine.test_backend_rows.test_ids_outside_the_vocabulary_never_reach_the_device",
        "gateway.test_hazards.test_6_an_id_outside_the_vocabulary_is_refused_and_the_batch_goes_on",
    ),
    7: (  # chunks counted in tokens, cancels that wait for them
        "core.test_chunks.test_the_size_settles_at_the_largest_that_keeps_to_the_target",
        "core.test_chunks.test_a_plan_stays_within_its_budget_and_moves_its_first_row",
        "gateway.test_bug_log.test_c07_a_client_that_leaves_stops_the_work_at_the_next_chunk_or_step",
        "gateway.test_hazards.test_7_while_a_long_prompt_is_read_others_write_at_every_chunk",
    ),
    8: (  # blocking at the head of the line
        "core.test_chunks.test_short_prompts_share_a_forward_and_a_long_one_does_not_hold_them_back",
        "core.test_line.test_nobody_is_passed_over_more_often_than_is_allowed",
        "gateway.test_hazards.test_8_a_short_prompt_does_not_wait_for_long_ones",
    ),
    9: (  # copies at join
        "engine.test_prompt_cache.test_rows_from_one_entry_share_no_writes_in_a_batch",
        "gateway.test_hazards.test_9_joining_does_not_copy_the_batch",
    ),
    10: (  # one rectangle for all
        "engine.test_packs.test_a_pack_holds_little_more_than_its_rows_need",
        "engine.test_batch_failures.test_rows_removed_at_any_time_free_what_they_held",
    ),
    11: (  # lazy results
        "engine.test_prompt_cache.test_bytes_of_entries_are_held_and_given_back",
        "gateway.test_hazards.test_11_what_is_over_holds_nothing_that_nobody_asked_to_keep",
    ),
    12: (  # live lists
        "engine.test_backend_rows.test_what_a_processor_does_to_its_tokens_in_place_stays_with_it",
        "core.test_options.test_the_users_objects_are_copied",
        "gateway.test_hazards.test_12_what_is_handed_in_or_out_is_no_state_of_ours",
    ),
    13: (  # threads and exit
        "engine.test_backend_exit.test_exit_after_close",
        "lifecycle.test_ends.test_exit",
        "lifecycle.test_ends.test_kernels",
    ),
    14: (  # no guard around insert and next
        "gateway.test_failures.test_a_row_that_cannot_be_opened_is_that_rows_failure",
        "gateway.test_hazards.test_14_an_exact_hit_is_answered_and_a_top_k_beyond_the_vocabulary_refused_by_name",
    ),
    15: (  # two stop machines that disagree
        "engine.test_stop.test_text_ends_before_the_earliest_stop_however_it_was_cut",
        "gateway.test_hazards.test_15_stop_text_ends_the_row_and_nothing_comes_after_it",
    ),
    16: ("gateway.test_hazards.test_16_drafts_are_refused_by_name",),
    17: (  # uneven cache classes
        "engine.test_batch_failures.test_rows_removed_at_any_time_free_what_they_held",
        "engine.test_kv_affine.test_a_shared_cache_does_not_see_later_writes",
        "engine.test_prompt_cache.test_only_states_that_hold_their_past_can_be_cut_back",
        "engine.test_batch_quantised.test_rows_before_and_after_their_conversion_sit_in_one_batch",
    ),
    18: (  # the prompt cache's order, keys and empty remainders
        "core.test_prefix.test_an_exact_hit_leaves_one_token_to_compute",
        "core.test_prefix.test_entries_are_not_consumed_and_the_least_recently_used_goes_first",
    ),
    19: ("engine.test_wired.test_two_backends_raise_it_once_and_the_last_restores_it",),
    20: (  # lazy arrays of another thread
        "engine.test_backend_rows.test_a_lazy_array_of_another_thread_fails_the_row_and_nothing_else",
        "gateway.test_hazards.test_20_a_processor_with_a_lazy_array_of_another_thread_fails_alone",
    ),
}


@pytest.mark.parametrize("hazard", range(1, 21))
def test_every_hazard_has_tests_that_exist(hazard: int) -> None:
    for path in WHERE[hazard]:
        *module, name = path.split(".")
        assert f"\ndef {name}(" in TESTS.joinpath(*module).with_suffix(".py").read_text(encoding="utf-8"), path


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway.from_loaded(*small("llama"), batch=8, deterministic=True, prefill_chunk=16) as made:
        yield made


@pytest.fixture(autouse=True)
def device_is_handed_on() -> Iterator[None]:
    """The gateway outlives the test, and hands the device on a moment after its last row."""
    yield
    wait_for(lambda: device_lease().holder is None)


PROMPTS = [random_prompt(6 + at, seed=at) for at in range(4)]
HOW: dict[str, Any] = {"raw": True, "max_tokens": 8, "logit_bias": {2: -100.0}}


def alone(gateway: Gateway, prompt: list[int], **more: Any) -> tuple[int, ...]:
    result = gateway.generate(prompt, cache_prompt=False, **{**HOW, **more})
    return tuple(result.token_ids)


def test_2_user_code_is_asked_once_a_token_and_never_again(gateway: Gateway) -> None:
    calls: list[list[int]] = [[] for _ in PROMPTS]
    heard: list[list[int]] = [[] for _ in PROMPTS]

    def code(at: int) -> dict[str, Any]:
        def processor(tokens: mx.array, logits: mx.array) -> mx.array:
            calls[at].append(len(tokens))
            return logits

        def on_token(token_id: int, _text: str, _logprobs: object) -> bool:
            heard[at].append(token_id)
            return not (at == 1 and len(heard[at]) == 3)

        return {"logits_processors": [processor], "on_token": on_token}

    with gateway.lease():
        rows = [gateway.submit(prompt, **HOW, **code(at)) for at, prompt in enumerate(PROMPTS)]
    results = [row.result() for row in rows]
    assert gateway.wait_idle()
    assert [result.generated_tokens for result in results] == [8, 3, 8, 8]
    for at, result in enumerate(results):
        assert tuple(heard[at]) == result.token_ids
        assert calls[at] == [len(PROMPTS[at]) + n for n in range(result.generated_tokens)]


def test_5_a_seed_holds_whoever_draws_numbers_meanwhile(gateway: Gateway) -> None:
    def draws(_tokens: mx.array, logits: mx.array) -> mx.array:
        mx.random.seed(1)
        return logits + 0 * mx.random.normal(logits.shape)

    drawn: dict[str, Any] = {"temperature": 1.0, "seed": 5}
    said = alone(gateway, PROMPTS[0], **drawn)
    mx.random.seed(3)
    with gateway.lease():
        mine = gateway.submit(PROMPTS[0], **HOW, **drawn)
        others = [gateway.submit(PROMPTS[1], temperature=1.0, logits_processors=[draws], **HOW) for _ in range(3)]
        twin = gateway.submit(PROMPTS[0], **HOW, **drawn)
    assert mine.result().token_ids == twin.result().token_ids == said
    assert all(row.exception() is None for row in others)


@pytest.mark.parametrize("bad", [VOCAB, -1, 1 << 40])
def test_6_an_id_outside_the_vocabulary_is_refused_and_the_batch_goes_on(gateway: Gateway, bad: int) -> None:
    said = alone(gateway, PROMPTS[0])
    with gateway.lease():
        mine = gateway.submit(PROMPTS[0], **HOW)
        with pytest.raises(ValueError, match="logit_bias"):
            gateway.submit(PROMPTS[1], raw=True, logit_bias={bad: 1.0})
        with pytest.raises(ValueError, match="vocabulary"):
            gateway.submit([5, bad], raw=True)
    assert mine.result().token_ids == said


def test_7_while_a_long_prompt_is_read_others_write_at_every_chunk(gateway: Gateway) -> None:
    gateway.pause()
    short = gateway.submit(PROMPTS[0], **{**HOW, "max_tokens": 60})
    while short.progress().generated_tokens == 0:
        gateway.step(1)
    long = gateway.submit(random_prompt(200, seed=70), cache_prompt=False, **HOW)
    while long.status != "decode":
        before = short.progress().generated_tokens, long.progress().prefilled
        gateway.step(1)
        assert short.progress().generated_tokens == before[0] + 1
        assert long.progress().prefilled <= before[1] + 16 + 1
    gateway.resume()
    assert long.result().generated_tokens == 8
    assert short.result().generated_tokens == 60


def test_8_a_short_prompt_does_not_wait_for_long_ones(gateway: Gateway) -> None:
    gateway.pause()
    long = [gateway.submit(random_prompt(300, seed=80 + n), cache_prompt=False, **HOW) for n in range(3)]
    short = gateway.submit(PROMPTS[0], **HOW)
    while short.progress().generated_tokens == 0:
        gateway.step(1)
    assert all(row.progress().prefilled <= 4 * 16 for row in long)
    gateway.resume()
    assert all(row.exception() is None for row in (*long, short))


def test_9_joining_does_not_copy_the_batch(gateway: Gateway) -> None:
    """Elsewhere: three and a half times what is held, at the peak of a join with a history."""
    backend: Any = gateway._loop._backend
    gateway.pause()
    rows = [
        gateway.submit(random_prompt(200, seed=90 + n), cache_prompt=False, **{**HOW, "max_tokens": 40})
        for n in range(6)
    ]
    while any(row.progress().generated_tokens < 2 for row in rows):
        gateway.step(1)

    def begin() -> tuple[int, int]:
        backend.synchronize()
        mx.reset_peak_memory()
        return mx.get_active_memory(), backend.held_bytes()

    active, held = gateway.run_exclusive(begin)
    joiner = gateway.submit([7], **HOW)
    while joiner.progress().generated_tokens < 2:
        gateway.step(1)
    peak = gateway.run_exclusive(mx.get_peak_memory)
    gateway.resume()
    assert held >= 6 * 200 * 512
    assert peak - active < held / 2
    assert all(row.exception() is None for row in (*rows, joiner))


def test_11_what_is_over_holds_nothing_that_nobody_asked_to_keep(gateway: Gateway) -> None:
    backend: Any = gateway._loop._backend
    entries = set(backend._entries._entries)
    handles = [gateway.submit(random_prompt(60, seed=110 + n), cache_prompt=False, **HOW) for n in range(4)]
    assert all(handle.exception() is None for handle in handles)
    assert gateway.wait_idle()
    assert set(backend._entries._entries) == entries
    assert backend.held_bytes() == backend._entries.held_bytes()


def test_12_what_is_handed_in_or_out_is_no_state_of_ours(gateway: Gateway) -> None:
    said = alone(gateway, PROMPTS[0])
    prompt, processors, stop = list(PROMPTS[0]), [lambda _tokens, logits: logits], ["\0\0never"]
    gateway.pause()
    row = gateway.submit(prompt, logits_processors=processors, stop=stop, logprobs=0, **HOW)
    prompt[:] = [5] * 50
    processors.append(lambda *_: 1 / 0)
    stop[0] = ""
    while row.progress().generated_tokens < 3:
        gateway.step(1)
    row.logprobs_so_far().clear()
    row.pieces().clear()
    held = row.options
    row.options.clear()
    row.options.update({"max_tokens": 1, "logprobs": None, "seed": held["seed"] + 1})
    row.options["stop"].clear()
    assert row.options == held
    gateway.resume()
    result = row.result()
    assert result.seed == held["seed"]
    assert result.token_ids == said
    assert result.logprobs is not None
    assert len(result.logprobs) == 8
    assert isinstance(result.token_ids, tuple)


def test_14_an_exact_hit_is_answered_and_a_top_k_beyond_the_vocabulary_refused_by_name(gateway: Gateway) -> None:
    prompt = random_prompt(64, seed=140)
    how = {**HOW, "temperature": 0.8, "seed": 3, "top_k": VOCAB}
    first, again, third = (gateway.generate(prompt, **how) for _ in range(3))
    assert first.token_ids == again.token_ids == third.token_ids == alone(gateway, prompt, **how)
    assert (first.cached_tokens, again.cached_tokens > 0) == (0, True)
    with pytest.raises(ValueError, match="top_k"):
        gateway.submit(prompt, **{**how, "top_k": VOCAB + 1})


def test_15_stop_text_ends_the_row_and_nothing_comes_after_it(gateway: Gateway) -> None:
    gateway.generate(PROMPTS[1], **HOW)
    said = gateway.generate(PROMPTS[0], **{**HOW, "max_tokens": 12}).text
    stop = said[3:5]
    with gateway.lease():
        rows = [gateway.submit(PROMPTS[0], stop=[stop], **{**HOW, "max_tokens": 12}), gateway.submit(PROMPTS[1], **HOW)]
    result = rows[0].result()
    assert (result.finish_reason, result.finish_detail) == ("stop", "stop_string")
    assert result.text == said[: said.index(stop)]
    assert "".join(rows[0]) == result.text
    assert rows[1].result().finish_reason == "length"


def test_16_drafts_are_refused_by_name(gateway: Gateway) -> None:
    with pytest.raises(UnsupportedRequest, match="draft"):
        gateway.submit(PROMPTS[0], raw=True, draft="other")


def test_20_a_processor_with_a_lazy_array_of_another_thread_fails_alone(gateway: Gateway) -> None:
    said = [alone(gateway, prompt) for prompt in PROMPTS]
    made: list[mx.array] = []

    def make() -> None:
        made.append(mx.ones((VOCAB,)) * 2)  # never evaluated, and its thread is gone
        mx.clear_streams()

    maker = threading.Thread(target=make)
    maker.start()
    maker.join()

    def processor(_tokens: mx.array, logits: mx.array) -> mx.array:
        return logits + made[0]

    before = gateway.events().next
    with gateway.lease():
        rows = [
            gateway.submit(prompt, logits_processors=[processor] if at == 2 else None, **HOW)
            for at, prompt in enumerate(PROMPTS)
        ]
    ended = [row.exception() for row in rows]
    assert [type(error) for error in ended] == [type(None), type(None), RowFailed, type(None)]
    assert [row.result().token_ids for row in rows if row is not rows[2]] == said[:2] + said[3:]
    batch = gateway.events(before)
    assert int(batch["a"][batch["kind"] == Kind.STEP].max()) == 4


def test_1_a_processor_that_returns_complex_numbers_fails_alone(gateway: Gateway) -> None:
    """It once failed the whole step, as its log-probabilities have no order; twice, and its neighbours failed too."""
    long = {**HOW, "max_tokens": 30}
    said = alone(gateway, PROMPTS[0], max_tokens=30)
    gateway.pause()
    mine = gateway.submit(PROMPTS[0], **long)
    for _ in range(2):
        bad = gateway.submit(
            PROMPTS[1], logits_processors=[lambda _tokens, logits: logits.astype(mx.complex64)], logprobs=2, **HOW
        )
        while not bad.done():
            gateway.step(1)
        assert "complex" in str(bad.exception())
    gateway.resume()
    assert mine.result().token_ids == said
    assert mine._record.row.rewinds == 0


def test_4_what_type_a_neighbours_processor_returns_changes_no_bit() -> None:
    """The wider type of one row must not be that of all: a model in half precision, a processor in single."""
    model, tokenizer = small("llama")
    model.set_dtype(mx.bfloat16)
    how: dict[str, Any] = {**HOW, "temperature": 1.0, "seed": 3, "top_p": 0.9, "logprobs": 3, "cache_prompt": False}
    same = [lambda _tokens, logits: logits]
    wider = [lambda _tokens, logits: logits.astype(mx.float32)]
    with Gateway.from_loaded(model, tokenizer, batch=4, deterministic=True) as half:
        by_itself = half.generate(PROMPTS[0], logits_processors=same, **how)
        with half.lease():
            mine = half.submit(PROMPTS[0], logits_processors=same, **how)
            other = half.submit(PROMPTS[1], logits_processors=wider, **how)
        assert mine.result().token_ids == by_itself.token_ids
        assert mine.logprobs == by_itself.logprobs
        assert other.exception() is None
