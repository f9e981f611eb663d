"""What prompts would take, before anything is queued."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.options import as_int, parse_options
from mlx_notebook.gateway.sizes import show_bytes
from mlx_notebook.gateway.submission import encode, is_several, kv_bytes

if TYPE_CHECKING:
    from mlx_notebook.core.placement import Capabilities
    from mlx_notebook.gateway.loading import ModelFacts


@dataclass(frozen=True, slots=True)
class Estimate:
    """Tokens and memory of some prompts.

    Attributes:
        prompt_tokens: tokens a prompt, in order.
        total_tokens: prompts and full answers together.
        largest_bytes: KV memory of the largest row, run to its limit.
        budget_bytes: what the gateway's rows may take together.
        over_context: positions of prompts that leave no room for an answer.
        cut: positions of prompts whose answer may be cut by the context before max_tokens.
        over_budget: positions of prompts too big for the budget even alone.
    """

    prompt_tokens: tuple[int, ...]
    total_tokens: int
    largest_bytes: int
    budget_bytes: int
    over_context: tuple[int, ...]
    cut: tuple[int, ...]
    over_budget: tuple[int, ...]

    @property
    def fits(self) -> bool:
        """Whether `submit` would take every prompt."""
        return not self.over_context and not self.over_budget

    def __str__(self) -> str:
        lines = [
            f"{len(self.prompt_tokens)} prompts of {sum(self.prompt_tokens)} tokens, with answers {self.total_tokens}",
            f"largest row {show_bytes(self.largest_bytes)} of a budget of {show_bytes(self.budget_bytes)}",
        ]
        for label, positions in (
            ("no room for an answer", self.over_context),
            ("answer may be cut by the context", self.cut),
            ("too big for the budget", self.over_budget),
        ):
            if positions:
                lines.append(f"{label}: prompts {', '.join(map(str, positions))}")
        return "\n".join(lines)


def estimate_prompts(
    prompts: Any,
    max_tokens: int,
    options: dict[str, Any],
    *,
    facts: ModelFacts,
    capabilities: Capabilities,
    kv_budget: int,
) -> Estimate:
    """Estimate one prompt or a list of prompts; raises as `submit` does for a malformed one."""
    as_int("max_tokens", max_tokens, 1, 10_000_000, "a whole number from 1")
    parsed = parse_options(options, vocab_size=capabilities.vocab_size, draw_seed=lambda: 0)
    listed = list(prompts) if is_several(prompts) else [prompts]
    counts = [len(encode(prompt, parsed, facts, capabilities)[0]) for prompt in listed]
    limit = capabilities.context_length
    full = [count + max_tokens for count in counts]
    reached = [tokens if limit is None else min(tokens, limit) for tokens in full]
    sizes = [kv_bytes(capabilities, tokens) for tokens in reached]
    return Estimate(
        prompt_tokens=tuple(counts),
        total_tokens=sum(reached),
        largest_bytes=max(sizes, default=0),
        budget_bytes=kv_budget,
        over_context=tuple(i for i, count in enumerate(counts) if limit is not None and count + 1 > limit),
        cut=tuple(i for i, tokens in enumerate(full) if limit is not None and counts[i] + 1 <= limit < tokens),
        over_budget=tuple(i for i, size in enumerate(sizes) if size > kv_budget),
    )
