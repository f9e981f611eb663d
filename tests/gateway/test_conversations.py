"""Conversations on models whose kept states cannot be cut back: an edited last message, the next turn, their bits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.gateway.explaining import recording_now
from mlx_notebook.gateway.gateway import Gateway
from tests.engine.tiers import tiered
from tests.small_models import small

if TYPE_CHECKING:
    from mlx_notebook.core.results import Result

UNTRIMMABLE = ("gemma3_text", "mamba2", "lfm2", "qwen3_next")
CHUNK = 16

SYSTEM = {"role": "system", "content": "the fox and the hen went over the hill and then into the river in the rain"}
ASKED = {"role": "user", "content": "tell me of the other animals on the other side, and of the man who had seen it"}
EDITED = {"role": "user", "content": "tell me of the other animals on the other side, and of the hen in the river"}
SAID = {"role": "assistant", "content": "a hen"}
TURN = [SYSTEM, ASKED]
EDIT = [SYSTEM, EDITED]
NEXT = [SYSTEM, ASKED, SAID, {"role": "user", "content": "and then?"}]

# No end of sequence: all of them say as much.
HOW: dict[str, Any] = {"max_tokens": 6, "logit_bias": {2: -100.0}, "logprobs": 10}


def from_scratch(gateway: Gateway, prompt: Any) -> Result:
    result: Result = gateway.generate(prompt, cache_prompt=False, **HOW)
    assert result.cached_tokens == 0
    return result


@pytest.mark.parametrize("kind", tiered(UNTRIMMABLE, "mamba2"))
def test_in_deterministic_mode_a_reused_beginning_leaves_the_bits_as_they_are(kind: str) -> None:
    with Gateway.from_loaded(*small(kind), deterministic=True, prefill_chunk=CHUNK) as gateway:
        alone = [from_scratch(gateway, prompt) for prompt in (TURN, EDIT, NEXT)]
        cached = [gateway.generate(prompt, **HOW) for prompt in (TURN, EDIT, NEXT)]
    assert [one.cached_tokens % CHUNK for one in cached] == [0, 0, 0]
    assert cached[0].cached_tokens == 0
    assert min(one.cached_tokens for one in cached[1:]) >= CHUNK
    for mine, theirs in zip(cached, alone, strict=True):
        assert mine.token_ids == theirs.token_ids
        assert mine.logprobs == theirs.logprobs  # to the last bit


def test_editing_a_last_message_longer_than_a_chunk_reuses_all_whole_chunks_before_it() -> None:
    with Gateway.from_loaded(*small("mamba2"), deterministic=True, prefill_chunk=CHUNK) as gateway:
        before = gateway.count_tokens([SYSTEM])
        assert gateway.count_tokens(TURN) > before + 2 * CHUNK
        gateway.generate(TURN, **HOW)
        result = gateway.generate(EDIT, **HOW)
    assert 0 <= before - result.cached_tokens < 2 * CHUNK


@pytest.mark.parametrize("kind", tiered(UNTRIMMABLE, "mamba2"))
def test_an_edited_last_message_and_the_next_turn_read_only_what_is_new(kind: str) -> None:
    with Gateway.from_loaded(*small(kind)) as gateway:
        gateway.generate(TURN, **HOW)
        system, turn = gateway.count_tokens([SYSTEM]), gateway.count_tokens(TURN)
        before = gateway.stats().prompt_cache
        edited, following = gateway.generate(EDIT, **HOW), gateway.generate(NEXT, **HOW)
        after = gateway.stats().prompt_cache
        # Up to where the last message begins, or a few tokens further (the two begin alike); up to the turn's end.
        assert system // 2 < edited.cached_tokens < turn
        assert following.cached_tokens == turn - 1
        assert (after.hits - before.hits, after.misses - before.misses) == (2, 0)
        assert after.tokens_reused - before.tokens_reused == edited.cached_tokens + following.cached_tokens
        for prompt, result in ((EDIT, edited), (NEXT, following)):
            assert result.text == from_scratch(gateway, prompt).text


def test_short_chats_of_such_a_model_are_read_together() -> None:
    prompts = ["a hen", "the fox", "rain", "over the hill"]
    with Gateway.from_loaded(*small("mamba2")) as gateway:
        gateway.pause()
        handles = gateway.submit(prompts, max_tokens=2)
        gateway.resume()
        handles.results()
        chunks = recording_now(gateway._engine).chunks
        forwards = set(zip(chunks["start"], chunks["end"], strict=True))
    assert len(chunks) == len(prompts)
    assert len(forwards) == 1
