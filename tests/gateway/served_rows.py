"""A small model behind a gateway, rows of every sort beside one that fails, and what each of them says alone."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.lease import device_lease
from tests.gateway.fakes import wait_for
from tests.gateway.real_rows import faltering
from tests.small_models import random_prompt

if TYPE_CHECKING:
    from mlx_notebook.core.results import Result
    from mlx_notebook.gateway.handle import Handle

BATCH, CHUNK, COUNT = 8, 8, 48
GO_ON: dict[str, Any] = {"logit_bias": {2: -100.0}}  # no end of sequence


def _unchanged(_tokens: Any, logits: Any) -> Any:
    return logits


BESIDE: dict[str, tuple[int, dict[str, Any]]] = {
    "greedy": (4, {"logprobs": 3}),
    "sampled": (19, {"temperature": 0.9, "seed": 3, **GO_ON}),
    "penalised": (
        7,
        {"temperature": 1.1, "seed": 4, "repetition_penalty": 1.2, "top_p": 0.9, "logprobs": 2, **GO_ON},
    ),
    "shaped": (9, {"regex": "[a-z ]{400}", "temperature": 0.7, "seed": 5, "presence_penalty": 0.3}),
    "hosted": (8, {"logits_processors": [_unchanged], "temperature": 0.7, "seed": 6, "min_p": 0.02, **GO_ON}),
    "stopped": (11, {"stop": ["e\x00", "the\x01"], "on_token": lambda *_: None, "frequency_penalty": 0.2, **GO_ON}),
}
"""Rows that go on: the length of each one's prompt, and its options."""

LATER: dict[str, tuple[int, dict[str, Any]]] = {
    "long": (30, {"temperature": 1.0, "seed": 7, "xtc_probability": 0.5, **GO_ON}),
    "short": (10, {"logprobs": 0}),
}
"""Rows that come when something has failed."""

EVERYBODY = {**BESIDE, **LATER}


@dataclass
class Served:
    """A gateway over a small model of one kind, and what each of `EVERYBODY` says there alone, from scratch."""

    kind: str
    deterministic: bool
    chunk: int | None = CHUNK
    alone: dict[str, Result] = field(default_factory=dict)

    def __post_init__(self) -> None:
        model, tokenizer, self.faults = faltering(self.kind)
        self.gateway = Gateway.from_loaded(
            model, tokenizer, batch=BATCH, prefill_chunk=self.chunk, deterministic=self.deterministic
        )
        for name in EVERYBODY:
            self.alone[name] = self.ask(name, cache_prompt=False).result()
            assert self.alone[name].generated_tokens == COUNT, (self.kind, name)

    def ask(self, name: str, **more: Any) -> Handle:
        """One of `EVERYBODY`."""
        length, options = EVERYBODY[name]
        return self.submit(length, **{**options, **more})

    def submit(self, length: int, **options: Any) -> Handle:
        """Any other row; prompts of one length are the same."""
        prompt = random_prompt(length, seed=length)
        handle: Handle = self.gateway.submit(prompt, raw=True, **{"max_tokens": COUNT, **options})
        return handle

    def check(self, name: str, handle: Handle) -> None:
        """It says what it says alone: to the bit where the gateway is deterministic, else every token of it."""
        told, expected = handle.result(), self.alone[name]
        assert told.token_ids == expected.token_ids, name
        assert told.text == expected.text, name
        assert (told.finish_reason, told.finish_detail) == (expected.finish_reason, expected.finish_detail), name
        if self.deterministic:
            assert told.logprobs == expected.logprobs, name

    def works(self) -> None:
        """The next requests work, alone and together, and nothing is left over."""
        self.check("penalised", self.ask("penalised"))
        for name, handle in [(name, self.ask(name)) for name in EVERYBODY]:
            self.check(name, handle)
        assert self.gateway.wait_idle()
        wait_for(lambda: device_lease().holder is None)
        stats = self.gateway.stats()
        assert (stats.active_rows, stats.prefill_rows, stats.queued_rows) == (0, 0, 0)
        backend: Any = self.gateway.loop._backend
        assert not backend._rows
        assert backend.held_bytes() == stats.prompt_cache.bytes
