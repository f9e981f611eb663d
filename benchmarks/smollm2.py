"""The one model that the benchmarks share, and one request on each side: SmolLM2-135M-Instruct in float32.

Ours and the peer's run over the very same arrays in one process, so that only the way differs.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlx_notebook import Gateway

PROMPT = "Write a long story about a fox and a hen who keep a small shop together."
MAX_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Shared:
    """A model that mlx-lm loaded, and a gateway over it.

    Attributes:
        gateway: ours, over `model`.
        model: what `mlx_lm.load` gave, its weights in float32.
        tokenizer: mlx-lm's wrapper.
        prompt: token ids of PROMPT in the model's chat template.
    """

    gateway: Gateway
    model: Any
    tokenizer: Any
    prompt: list[int]


@dataclass(frozen=True, slots=True)
class Run:
    """One request as its caller saw it.

    Attributes:
        token_ids: what was generated.
        began, first, last: the clock when it was asked for, at the first text and at the end, in seconds.
    """

    token_ids: tuple[int, ...]
    began: float
    first: float
    last: float

    def measures(self) -> dict[str, float]:
        """`first_s` to the first text; `rate` of the whole and `decode_rate` after the first token, in tokens/s."""
        count = len(self.token_ids)
        return {
            "first_s": self.first - self.began,
            "rate": count / (self.last - self.began),
            "decode_rate": (count - 1) / (self.last - self.first),
        }


def load_model() -> tuple[Any, Any]:
    """SmolLM2 as mlx-lm loads it, dequantised and cast to float32; the BLAS that ours finds comes before MLX."""
    from mlx_notebook.models import resolve
    from mlx_notebook.models.backend_check import import_mlx

    mx = import_mlx()
    import mlx_lm
    from mlx_lm.utils import dequantize_model

    model, tokenizer = mlx_lm.load(str(resolve("smollm2").path))
    model = dequantize_model(model)
    model.set_dtype(mx.float32)
    mx.eval(model.parameters())
    return model, tokenizer


def load_shared() -> Shared:
    """Load once, for both sides."""
    model, tokenizer = load_model()
    from mlx_notebook import Gateway

    return Shared(Gateway.from_loaded(model, tokenizer), model, tokenizer, prompt_ids(tokenizer))


def prompt_ids(tokenizer: Any) -> list[int]:
    """PROMPT as one user's message in the chat template."""
    messages = [{"role": "user", "content": PROMPT}]
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return [int(token) for token in ids]


def run_ours(shared: Shared, max_tokens: int = MAX_TOKENS) -> Run:
    """One greedy request through the gateway, its deltas read as they come."""
    began = time.perf_counter()
    handle = shared.gateway.submit(shared.prompt, max_tokens=max_tokens, temperature=0.0, cache_prompt=False)
    first = 0.0
    for _delta in handle:
        first = first or time.perf_counter()
    result = handle.result()
    return Run(tuple(result.token_ids), began, first, time.perf_counter())


def run_peer(shared: Shared, max_tokens: int = MAX_TOKENS) -> Run:
    """The same request through mlx-lm's `stream_generate`, on the calling thread."""
    import mlx_lm

    began = time.perf_counter()
    token_ids: list[int] = []
    first = 0.0
    for response in mlx_lm.stream_generate(shared.model, shared.tokenizer, shared.prompt, max_tokens=max_tokens):
        first = first or time.perf_counter()
        token_ids.append(int(response.token))
    return Run(tuple(token_ids), began, first, time.perf_counter())


def check_same_work(one: Run, other: Run) -> None:
    """Raise unless both sides generated the same tokens: a comparison of different work says nothing."""
    if one.token_ids != other.token_ids:
        raise RuntimeError(f"the two sides said different things: {one.token_ids} and {other.token_ids}")


def settings(shared: Shared) -> dict[str, Any]:
    """What a report says about the work."""
    return {
        "model": "SmolLM2-135M-Instruct, float32",
        "prompt_tokens": len(shared.prompt),
        "max_tokens": MAX_TOKENS,
        "sampling": "greedy",
    }


def arguments(description: str | None, *, rounds: int) -> argparse.Namespace:
    """The two options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"measured rounds (default {rounds})")
    parser.add_argument("--no-keep", action="store_true", help="print the table only")
    return parser.parse_args()
