"""A backend whose text depends on prompt and seed alone, with words in the prompt that make a row end otherwise."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from mlx_notebook.core.events import RowOutcome
from mlx_notebook.core.placement import Capabilities
from mlx_notebook.core.rows import FinishDetail, FinishReason
from mlx_notebook.engine.backend import ScriptedBackend


def said(prompt: str, seed: int, index: int) -> str:
    """The text of one token."""
    return chr(ord("a") + zlib.crc32(f"{prompt}|{seed}|{index}".encode()) % 26)


def text_of(prompt: str, seed: int, tokens: int) -> str:
    return "".join(said(prompt, seed, index) for index in range(tokens))


def capabilities(*, rows: int = 4, context: int = 200) -> Capabilities:
    return Capabilities(vocab_size=0x110000, context_length=context, max_rows=rows, continuous=True)


@dataclass(slots=True)
class Echo(ScriptedBackend):
    """FAIL in a prompt makes its row fail at its second token, STOP makes it end by itself there."""

    def _outcome(self, row_id: int) -> RowOutcome:
        request, index = self._rows[row_id], self._counts[row_id]
        self._counts[row_id] = index + 1
        prompt = "".join(map(chr, request.shape.prompt_ids))
        self.script(row_id, index)  # a test may wait here
        text = said(prompt, request.shape.sampling.seed, index)
        if "FAIL" in prompt and index == 1:
            return RowOutcome(row_id, None, error=("ValueError: this row was made to fail", "its traceback"))
        if "STOP" in prompt and index == 1:
            return RowOutcome(row_id, ord(text), text, finish=(FinishReason.STOP, FinishDetail.EOS))
        if index + 1 >= request.shape.sampling.max_tokens:
            return RowOutcome(row_id, ord(text), text, finish=(FinishReason.LENGTH, FinishDetail.MAX_TOKENS))
        return RowOutcome(row_id, ord(text), text)
