"""Several rows at once on each side: through the gateway, through mlx-lm's `BatchGenerator`, one after the other.

Nothing here ends by a stop token, so that both sides make exactly as many tokens as were asked for.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.smollm2 import PROMPT, load_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook import Gateway

PEER = "BatchGenerator"
LOOP = "stream_generate, one by one"
OURS = "gateway"


@dataclass(frozen=True, slots=True)
class Both:
    """A model on both sides: a gateway over it, and the pair for mlx-lm."""

    gateway: Gateway
    model: Any
    tokenizer: Any

    @classmethod
    def over(cls, model: Any, tokenizer: Any, **settings: Any) -> Both:
        """A gateway over what mlx-lm loaded; the tokenizer forgets which tokens end an answer."""
        from mlx_notebook import Gateway

        tokenizer.eos_token_ids = set()
        return cls(Gateway.from_loaded(model, tokenizer, **settings), model, tokenizer)


def smollm2(**settings: Any) -> Both:
    """SmolLM2 in float32."""
    return Both.over(*load_model(), **settings)


def prompts_of(tokenizer: Any, lengths: Sequence[int], salt: int = 0) -> list[list[int]]:
    """Prompts of exactly so many tokens, each its own from the first token on: nothing is spared by a common prefix."""
    text = " ".join([PROMPT] * (1 + max(lengths) // 12))
    ids = [int(token) for token in tokenizer.encode(text)]
    found = []
    for row, length in enumerate(lengths):
        opening = [int(token) for token in tokenizer.encode(f"{salt} {row}:")]
        found.append([*opening, *ids][:length])
    return found


def checked(counts: Sequence[int], answer: int, side: str) -> int:
    """Their sum. Raises RuntimeError unless every row made all its tokens: other work cannot be compared."""
    if any(count != answer for count in counts):
        raise RuntimeError(f"{side}: rows made {list(counts)} tokens, {answer} each were asked for")
    return sum(counts)


def run_ours(both: Both, prompts: Sequence[list[int]], answer: int) -> dict[str, float]:
    """All prompts at once through the gateway; `rate` in tokens/s from asking to the last result."""
    began = time.perf_counter()
    handles = both.gateway.submit(list(prompts), raw=True, max_tokens=answer, temperature=0.0, cache_prompt=False)
    counts = [result.generated_tokens for result in handles.results()]
    spent = time.perf_counter() - began
    return {"rate": checked(counts, answer, OURS) / spent}


def run_peer(both: Both, prompts: Sequence[list[int]], answer: int) -> dict[str, float]:
    """The same through `BatchGenerator`, all prompts in its first batch."""
    from mlx_lm.generate import BatchGenerator

    began = time.perf_counter()
    generator = BatchGenerator(
        both.model, max_tokens=answer, completion_batch_size=max(32, len(prompts)), prefill_batch_size=len(prompts)
    )
    made = dict.fromkeys(generator.insert(list(prompts)), 0)
    left = len(made)
    while left:
        for response in generator.next()[1]:
            made[response.uid] += 1
            left -= response.finish_reason is not None
    generator.close()
    spent = time.perf_counter() - began
    return {"rate": checked(list(made.values()), answer, PEER) / spent}


def run_loop(both: Both, prompts: Sequence[list[int]], answer: int) -> dict[str, float]:
    """The same by `stream_generate`, one prompt after the other."""
    import mlx_lm

    began = time.perf_counter()
    counts = [
        sum(1 for _ in mlx_lm.stream_generate(both.model, both.tokenizer, prompt, max_tokens=answer))
        for prompt in prompts
    ]
    spent = time.perf_counter() - began
    return {"rate": checked(counts, answer, LOOP) / spent}
