"""What comes out of a request: the frozen Result and its figures."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlx_notebook.core.placement import Placement


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probabilities of one step, natural log, of the distribution before temperature and filters.

    `top` holds (token id, log-probability) of the likeliest alternatives, best first; empty unless asked for.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Result:
    """A finished (or cut, cancelled, failed) request. Times are milliseconds, rates tokens per second.

    `token_ids` holds every generated token, the end-of-sequence token and a stop string's tokens too;
    `text` ends before either. `reasoning` is what stood inside the model's thinking marks, which `text` does not
    hold; None where it did not think.

    `parsed` is what an answer with a shape says: of a JSON schema the value (or the pydantic object), else the text;
    None where it is not complete, and `parse_error` says why. `probabilities` are those of `choices`, where
    log-probabilities were asked for: the model's own, over what the grammar allows step by step; they sum to 1, and
    `undecided` is how much of that was split evenly because the model did not go that way.

    A figure that never came to be (no first token) is None.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    finish_detail: str
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    queue_ms: float
    prefill_ms: float | None
    decode_ms: float | None
    ttft_ms: float | None
    tpot_ms: float | None
    prompt_tps: float | None
    decode_tps: float | None
    logprobs: tuple[TokenLogprob, ...] | None
    seed: int
    model: str
    placement: Placement
    reasoning: str | None = None
    parsed: Any = None
    parse_error: str | None = None
    probabilities: Mapping[str, float] | None = None
    undecided: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain values (the placement as a dictionary), ready for JSON.

        A pydantic object is the dictionary that it dumps under its aliases. What the class reads under one name and
        dumps under another is there under both, as the columns of a frame are named by the schema.
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["token_ids"] = list(self.token_ids)
        values["placement"] = self.placement.to_dict()
        dump = getattr(self.parsed, "model_dump", None)  # a pydantic object's
        if callable(dump):
            values["parsed"] = _under_all_names(dump(mode="json", by_alias=True), json.loads(self.text))
        if self.probabilities is not None:
            values["probabilities"] = dict(self.probabilities)
        if self.logprobs is not None:
            values["logprobs"] = [
                {"token_id": p.token_id, "logprob": p.logprob, "top": [list(pair) for pair in p.top]}
                for p in self.logprobs
            ]
        return values

    def __str__(self) -> str:
        return self.text


def _under_all_names(dumped: Any, written: Any) -> Any:
    if isinstance(dumped, dict) and isinstance(written, dict):
        return {**dumped, **{name: value for name, value in written.items() if name not in dumped}}
    return dumped
