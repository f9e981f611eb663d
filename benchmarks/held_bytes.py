"""What rows of mixed lengths hold, beside what they need: `python -m benchmarks.held_bytes`.

Held is what MLX's allocator counts as active, less the weights, between two steps. Need is, summed over the rows,
the smaller of tokens and window, rounded up to 64, times a column's bytes, and constant state. Peaks count what a
step, a join or a growth has on top while it runs.
"""

from __future__ import annotations

import statistics
import sys
import threading
from typing import TYPE_CHECKING, Any

from benchmarks.harness import Line, Report, Samples, compare, finish, interleave
from benchmarks.smollm2 import arguments

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.engine.mlx_backend import MlxBackend

LENGTHS = (30, 700, 64, 1_500, 250, 90, 400, 33)
JOINER = 600
LEAVERS = (0, 4)
STEPS = 80
"""A joiner comes at half of them, two rows leave at three quarters."""

BAR = 1.3
MODELS = {"full attention": "llama", "sliding window": "gemma3_text", "recurrent and attention": "qwen3_next"}
MEASURES = {
    "held_mb": ("held between steps (median)", BAR),
    "most_mb": ("the most between steps", None),
    "growth_peak_mb": ("peak of a step, caches growing", None),
    "join_peak_mb": (f"peak while {JOINER} tokens join", None),
}


def lines(samples: Samples) -> list[Line]:
    """The table's lines: megabytes, so less is better."""
    return [
        compare(
            samples,
            measure,
            ours=kind,
            theirs=f"{kind}: need",
            what=f"{kind}, {what}",
            unit="MB",
            bar=bar,
            more_is_better=False,
        )
        for kind in MODELS
        for measure, (what, bar) in MEASURES.items()
    ]


def model_of(family: str) -> Any:
    """A model of this family whose rows hold far more than a step's intermediate values; random weights."""
    from mlx_notebook.models.backend_check import import_mlx

    import_mlx()
    from importlib import import_module

    module = import_module(f"mlx_lm.models.{family}")
    common: dict[str, Any] = {
        "model_type": family,
        "hidden_size": 128,
        "num_hidden_layers": 12,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "vocab_size": 320,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 8_192,
    }
    more: dict[str, dict[str, Any]] = {
        "llama": {},
        "gemma3_text": {"query_pre_attn_scalar": 64, "sliding_window": 512, "sliding_window_pattern": 6},
        "qwen3_next": {
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 64,
            "linear_value_head_dim": 64,
            "linear_conv_kernel_dim": 4,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "decoder_sparse_step": 1,
            "shared_expert_intermediate_size": 64,
            "mlp_only_layers": [],
            "moe_intermediate_size": 64,
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.5,
        },
    }
    model = module.Model(module.ModelArgs(**common, **more[family]))
    model.eval()
    return model


def need_of(model: Any) -> Callable[[int], int]:
    """Bytes that a row of so many tokens needs."""
    import mlx.core as mx
    from mlx_lm.models.cache import ArraysCache, make_prompt_cache

    caches = make_prompt_cache(model)
    model(mx.zeros((1, 1), dtype=mx.int32), cache=caches)  # shapes only: nothing is evaluated
    columns: list[tuple[int, int]] = []
    constant = 0
    for cache in caches:
        if isinstance(cache, ArraysCache):
            constant += sum(array.nbytes for array in cache.cache)
        else:
            width = sum(array.shape[1] * array.shape[3] * array.itemsize for array in (cache.keys, cache.values))
            columns.append((getattr(cache, "max_size", 1 << 30), width))

    def need(tokens: int) -> int:
        blocks = -(-tokens // 64) * 64
        return constant + sum(min(blocks, window) * width for window, width in columns)

    return need


def watch(model: Any, backend: MlxBackend) -> tuple[dict[str, float], dict[str, float]]:
    """Rows of mixed lengths for some steps, a joiner in the middle; (what was held, what was needed then), in MB."""
    import mlx.core as mx

    from mlx_notebook.core.events import Decode, Prefill, PrefillPart, StepDone
    from mlx_notebook.core.request import Request, RequestShape, SamplingOptions

    need, fed = need_of(model), dict(enumerate(LENGTHS))
    empty = mx.get_active_memory()

    def join(row_id: int, length: int) -> None:
        prompt = tuple(3 + (row_id * 7 + at) % 300 for at in range(length))
        backend.open(Request(row_id, RequestShape(prompt, SamplingOptions(max_tokens=1_000))))
        done = backend.prefill(Prefill((PrefillPart(row_id, 0, length, last=True),)))
        if done.errors:
            raise RuntimeError(done.errors[row_id][1])

    def taken(read: Callable[[], int]) -> float:
        backend.synchronize()
        return (read() - empty) / 1e6

    held: list[tuple[float, float]] = []
    peaks: dict[str, tuple[float, float]] = {"growth_peak_mb": (0.0, 1.0), "join_peak_mb": (0.0, 1.0)}

    def note_peak(name: str) -> None:
        found = taken(mx.get_peak_memory), sum(map(need, fed.values())) / 1e6
        peaks[name] = max(peaks[name], found, key=lambda pair: pair[0] / pair[1])

    for row_id, length in fed.items():
        join(row_id, length)
    for step in range(STEPS):
        mx.reset_peak_memory()
        if step == 3 * STEPS // 4:
            for row_id in LEAVERS:
                del fed[row_id]
                backend.drop(row_id)
        if step == STEPS // 2:
            fed[len(fed)] = JOINER
            join(len(fed) - 1, JOINER)
            note_peak("join_peak_mb")
            mx.reset_peak_memory()
        outcome = backend.decode(Decode(tuple(fed)))
        if not isinstance(outcome, StepDone):
            raise RuntimeError(outcome.error[1])  # noqa: TRY004 - the step failed; its type only says so
        fed = {row_id: tokens + (step > 0 or tokens == 0) for row_id, tokens in fed.items()}
        note_peak("growth_peak_mb")
        held.append((taken(mx.get_active_memory), sum(map(need, fed.values())) / 1e6))
    for row_id in fed:
        backend.drop(row_id)
    middle = statistics.median(range(len(held)))
    by_share = sorted(held, key=lambda pair: pair[0] / pair[1])
    chosen = {"held_mb": by_share[int(middle)], "most_mb": by_share[-1], **peaks}
    return {name: pair[0] for name, pair in chosen.items()}, {name: pair[1] for name, pair in chosen.items()}


def one_run(kind: str, needs: list[dict[str, float]]) -> dict[str, float]:
    """A model and a backend of its own on a thread of its own, as an engine has."""
    import mlx.core as mx

    from mlx_notebook.engine.mlx_backend import MlxBackend
    from tests.small_models import tiny_tokenizer

    model = model_of(MODELS[kind])
    mx.eval(model.parameters())
    found: list[dict[str, float]] = []

    def work() -> None:
        backend = MlxBackend(model, tiny_tokenizer())
        try:
            held, needed = watch(model, backend)
            found.append(held)
            needs.append(needed)
        finally:
            backend.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    mx.clear_cache()
    return found[0]


def place() -> tuple[str, dict[str, str]]:
    """The result's name, and what else is said of it: a GPU has other stores than a CPU, so its result its own file."""
    import mlx.core as mx

    from benchmarks.fast.table import device

    if mx.default_device().type == mx.DeviceType.cpu:
        return "held_bytes", {}
    return "held_bytes_gpu", {"device": device(), "command": "python -m benchmarks.held_bytes"}


def main() -> int:
    """Measure, print, keep."""
    options = arguments(__doc__, rounds=2)
    needs: dict[str, list[dict[str, float]]] = {kind: [] for kind in MODELS}
    samples = interleave(
        {kind: (lambda kind=kind: one_run(kind, needs[kind])) for kind in MODELS},  # type: ignore[misc]
        rounds=options.rounds,
        warmup=0,
    )
    samples |= {f"{kind}: need": found for kind, found in needs.items()}
    name, where = place()
    settings = {"lengths": LENGTHS, "joiner": JOINER, "steps": STEPS, **where}
    report = Report(name, "Bytes that rows hold, over what they need", lines(samples), samples, settings)
    return finish(report, keep=not options.no_keep)


if __name__ == "__main__":
    sys.exit(main())
