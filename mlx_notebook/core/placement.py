"""Placement: which mechanism serves a request, which features it gets, and every reason why not.

`resolve` is pure and allocates nothing. A placement carries the identity of its request's shape and
the gateway's epoch, so that it cannot serve another request or a gateway that changed since.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.projection import CacheCost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.core.request import RequestShape


class Mechanism(StrEnum):
    """How a row runs: admitted to the batch, or alone under the device lease."""

    CONTINUOUS = "continuous"
    SERIAL = "serial"


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason: a stable code and a sentence for a person."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a loaded model and its backend can do, as plain facts for the core.

    `vocab_size` bounds every token id (the number of rows of the model's output head); `context_length` is in tokens,
    None where the model names none. `continuous_code` and `continuous_why_not` give the reason where rows can only run
    alone. `kv_bytes_per_token` and `state_bytes` are what one row takes: per token, and constant; `windows` are
    (window, bytes a token) of layers that keep only their last tokens. Where rows are quantised from `kv_start` tokens
    on, `unconverted` is what they take before. `trimmable` says whether a kept state can be cut back to a shorter
    prefix.
    """

    vocab_size: int
    context_length: int | None = None
    max_rows: int = 1024
    continuous: bool = False
    continuous_code: str = "continuous-unavailable"
    continuous_why_not: str = "this version runs one row at a time"
    kv_bytes_per_token: int = 0
    state_bytes: int = 0
    windows: tuple[tuple[int, int], ...] = ()
    kv_start: int = 0
    unconverted: CacheCost | None = None
    trimmable: bool = True
    compiled: bool = False
    prompt_cache: bool = False

    @property
    def cost(self) -> CacheCost:
        """What a row's caches take."""
        return CacheCost(
            self.kv_bytes_per_token, self.windows, self.state_bytes, start=self.kv_start, unconverted=self.unconverted
        )


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a request goes and what it gets there; frozen. `shape` and `epoch` are its identity."""

    mechanism: Mechanism
    method: str
    prompt_cache: bool
    checkpoint: bool
    compiled: bool
    reasons: tuple[Reason, ...]
    shape: RequestShape = field(repr=False)
    epoch: int = field(default=0, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without the shape."""
        return {
            "mechanism": str(self.mechanism),
            "method": self.method,
            "prompt_cache": self.prompt_cache,
            "checkpoint": self.checkpoint,
            "compiled": self.compiled,
            "reasons": [{"code": reason.code, "text": reason.text} for reason in self.reasons],
        }


def resolve(
    shape: RequestShape,
    capabilities: Capabilities,
    epoch: int,
    notes: Sequence[Reason] = (),
    *,
    cache_off: str | None = None,
) -> Placement:
    """Place one request: pure, and every feature is either used or named in the reasons.

    Args:
        notes: what the compiler of the request's grammar has to say.
        cache_off: what the user set that turns the prompt cache off for this request; None where nothing does.
    """
    exclusions: list[Reason] = []
    if not capabilities.continuous:
        exclusions.append(
            Reason(
                capabilities.continuous_code,
                f"The row runs alone, first come, first served: {capabilities.continuous_why_not}.",
            )
        )
    advice: list[Reason] = []
    if not capabilities.prompt_cache:
        advice.append(
            Reason("prompt-cache-unavailable", "The whole prompt is computed: this version keeps no prompt cache.")
        )
    elif cache_off is not None:
        advice.append(Reason("prompt-cache-off", f"The whole prompt is computed, and not kept: {cache_off}."))
    advice += notes
    if shape.grammar is not None and shape.sampling.logprobs is not None:
        advice.append(
            Reason("logprobs-masked", "Log-probabilities are of the distribution over what the grammar allows.")
        )
    return Placement(
        mechanism=Mechanism.SERIAL if exclusions else Mechanism.CONTINUOUS,
        method="autoregressive",
        prompt_cache=capabilities.prompt_cache and cache_off is None,
        checkpoint=False,
        compiled=capabilities.compiled,
        reasons=(*exclusions, *advice),
        shape=shape,
        epoch=epoch,
    )
