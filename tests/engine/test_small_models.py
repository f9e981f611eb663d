"""The small models are worth testing with: repeatable, and what they say hangs on the whole prompt."""

from __future__ import annotations

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten
from mlx_lm.generate import generate_step

from tests.engine.tiers import tiered
from tests.small_models import KINDS, SPECIALS, VOCAB, random_prompt, small, tiny_tokenizer


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_weights(kind: str) -> None:
    first, second = (dict(tree_flatten(small(kind)[0].parameters())) for _ in range(2))
    assert first.keys() == second.keys()
    assert all(mx.array_equal(first[name], second[name]).item() for name in first)


@pytest.mark.parametrize("kind", tiered(KINDS, "llama"))
def test_the_first_of_ten_prompt_tokens_changes_the_answer(kind: str) -> None:
    model, _ = small(kind)

    def answer(prompt: list[int]) -> list[int]:
        return [int(token) for token, _ in generate_step(mx.array(prompt), model, max_tokens=12)]

    changed = 0
    for seed in range(6):
        prompt = random_prompt(10, seed)
        other = [prompt[0] + 1 if prompt[0] + 1 < VOCAB else len(SPECIALS), *prompt[1:]]
        changed += answer(prompt) != answer(other)
    assert changed >= 4


@pytest.mark.parametrize("vocab_size", [259, VOCAB, 1000])
def test_the_tiny_tokenizer_has_exactly_so_many_ids_and_loses_nothing(vocab_size: int) -> None:
    tokenizer = tiny_tokenizer(vocab_size)
    assert len(tokenizer) == vocab_size
    text = " the fox\n漢字 \U0001f98a\x00 word300 end "
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_token_ids == {2}
