"""How a gateway turns prompts into token ids: the model's tokenizer, or code points where there is none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mlx_notebook.models.tokenization import Tokenization


class PromptEncoder(Protocol):
    """Called on the caller's thread; keeps its own lock."""

    def encode(
        self,
        prompt: Any,
        *,
        system: str | None,
        raw: bool,
        allow_special: bool,
        chat_template_kwargs: Mapping[str, Any],
    ) -> tuple[list[int], str]:
        """(ids, text) of one prompt; TypeError or ValueError says what is wrong with it."""
        ...

    def text_of(self, token_id: int) -> str:
        """What one token says by itself."""
        ...


class ModelEncoder:
    """A loaded model's tokenizer and chat template."""

    def __init__(self, tokenization: Tokenization) -> None:
        self._tokenization = tokenization

    def encode(
        self,
        prompt: Any,
        *,
        system: str | None,
        raw: bool,
        allow_special: bool,
        chat_template_kwargs: Mapping[str, Any],
    ) -> tuple[list[int], str]:
        from mlx_notebook.models.chat import encode_prompt

        return encode_prompt(
            self._tokenization,
            prompt,
            system=system,
            raw=raw,
            allow_special=allow_special,
            chat_template_kwargs=chat_template_kwargs or None,
        )

    def text_of(self, token_id: int) -> str:
        return self._tokenization.decode([token_id])


class CodePointEncoder:
    """One token a character, for backends without a tokenizer (scripted ones)."""

    def encode(
        self,
        prompt: Any,
        *,
        system: str | None,
        raw: bool,
        allow_special: bool,
        chat_template_kwargs: Mapping[str, Any],
    ) -> tuple[list[int], str]:
        del raw, allow_special, chat_template_kwargs  # there is no template here, and nothing is special
        if isinstance(prompt, str):
            text = prompt if system is None else f"{system}\n{prompt}"
            return [ord(character) for character in text], text
        items = list(prompt)
        if all(isinstance(item, dict) for item in items):
            text = "\n".join(str(message.get("content", "")) for message in items)
            return [ord(character) for character in text], text
        ids = [int(item) for item in items]
        return ids, "".join(chr(i) for i in ids)

    def text_of(self, token_id: int) -> str:
        return chr(token_id)
