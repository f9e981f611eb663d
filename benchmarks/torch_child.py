"""The process of Transformers' side of a table: reads what to do as JSON, says what it measured as JSON's last line.

`benchmarks.fast.transformers_peer` starts it. It imports nothing of MLX, which would take memory of its own.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

ON_CPU_BLOCKS, ON_CPU_TOKENS = 256, 2_048


def runs_of(model: Any, batches: Sequence[Sequence[list[int]]], how: dict[str, Any]) -> list[dict[str, float]]:
    """Seconds of each batch through `generate_batch`, and the tokens that its rows made.

    Its manager (cache, graphs) is made in the first of them, for so many rows, and kept for the others.
    """
    found = []
    for prompts in batches:
        began = time.perf_counter()
        outputs = model.generate_batch(inputs=list(prompts), persistent_manager=True, **how)
        spent = time.perf_counter() - began
        errors = [output.error for output in outputs.values() if output.error]
        if errors or len(outputs) != len(prompts):  # it only logs what ended its thread
            raise RuntimeError(f"{len(outputs)} of {len(prompts)} answers; {errors[:1] or 'no error was given'}")
        made = sorted(len(output.generated_tokens) for output in outputs.values())
        found.append({"seconds": spent, "rows": len(made), "fewest": made[0], "most": made[-1]})
    model.destroy_cached_continuous_batching_manager()
    return found


def main() -> int:
    """Read, load, measure, say."""
    asked = json.load(sys.stdin)
    torch, transformers = import_module("torch"), import_module("transformers")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        asked["folder"], dtype=asked["dtype"], attn_implementation="sdpa"
    )
    model = model.to(device).eval()
    configuration = transformers.GenerationConfig(
        do_sample=False, max_new_tokens=asked["answer"], eos_token_id=asked["never"], pad_token_id=0, use_cache=True
    )
    how = {"generation_config": configuration, "max_new_tokens": asked["answer"]}
    if device == "cpu":  # it would take most of the machine's memory for its cache
        how["continuous_batching_config"] = transformers.ContinuousBatchingConfig(
            num_blocks=ON_CPU_BLOCKS, max_batch_tokens=ON_CPU_TOKENS
        )
    measured = [runs_of(model, batches, how) for batches in asked["batches"]]
    print(json.dumps({"device": device, "torch": torch.__version__, "runs": measured}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
