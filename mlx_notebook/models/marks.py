"""Values that are handed to a chat template, and marks around the control tokens that they spell.

A mark is plain ASCII that stands nowhere in the values or the template, so that nobody writes one, and a template that
shows a value as JSON or as Python does leaves it as it is.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from inspect import isfunction, ismethod
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlx_notebook.models.tokenization import Tokenization


def plain(value: Any) -> Any:
    """The value as a template sees it, in dicts, lists, tuples and plain values: whatever holds text is looked into."""
    if isinstance(value, Mapping):
        return {plain(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return _like(value, [plain(one) for one in value])
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if not isinstance(value, type) and callable(getattr(value, "model_dump", None)):  # pydantic's
        return plain(value.model_dump())
    return value


def plain_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The same of a template's options; a function among the tools becomes what its signature and docstring say.

    Raises:
        ValueError: it says too little.
    """
    found = dict(options or {})
    if isinstance(found.get("tools"), list | tuple):
        found["tools"] = [_described(tool) if isfunction(tool) or ismethod(tool) else tool for tool in found["tools"]]
    return {name: plain(value) for name, value in found.items()}


def _described(tool: Any) -> Any:
    from transformers.utils import get_json_schema

    try:
        return get_json_schema(tool)
    except Exception as error:
        said = " ".join(str(error).split())
        raise ValueError(
            f"chat_template_kwargs: the tool {tool.__name__} cannot be described to the model ({said}). Give it type"
            " hints and a docstring with its arguments, or give a dictionary"
        ) from error


def holds_control_tokens(tokenization: Tokenization, value: Any) -> bool:
    """Whether a text in a plain value spells a control token."""
    return any(tokenization.holds_control_tokens(text) for text in _texts(value))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for pair in value.items():
            yield from _texts(pair)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def _like(value: list[Any] | tuple[Any, ...], parts: list[Any]) -> Any:
    return parts if isinstance(value, list) else tuple(parts)


@dataclass(frozen=True, slots=True)
class Marks:
    """What is put before and behind a spelling."""

    opening: str
    closing: str

    @classmethod
    def unlike(cls, values: Any) -> Self:
        """Marks that stand in none of these."""
        texts = list(_texts(values))
        name = next(f"~{n}~" for n in itertools.count() if not any(f"~{n}~" in text for text in texts))
        return cls(f"{name}(", f"){name}")

    def put(self, tokenization: Tokenization, value: Any) -> Any:
        """A plain value with every control token's spelling between marks, in nested values and in keys too."""
        if isinstance(value, str):
            pieces = tokenization.split_at_control_tokens(value)
            return "".join(f"{self.opening}{p}{self.closing}" if i % 2 else p for i, p in enumerate(pieces))
        if isinstance(value, Mapping):
            return {self.put(tokenization, k): self.put(tokenization, v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return _like(value, [self.put(tokenization, v) for v in value])
        return value

    def encode(self, tokenization: Tokenization, rendered: str) -> tuple[list[int], str]:
        """(ids, text): cut at unmarked control tokens; what lies between is encoded as text, without its marks."""
        ids: list[int] = []
        pending = ""
        texts: list[str] = []
        pieces = tokenization.split_at_control_tokens(rendered)
        for i, piece in enumerate(pieces):
            between = i % 2 == 1 and pieces[i - 1].endswith(self.opening) and pieces[i + 1].startswith(self.closing)
            if i % 2 == 0 or between:
                pending += piece
                continue
            said = tokenization.trimmed_between(self._without(pending), after=texts[-1] if texts else "", before=piece)
            ids += tokenization.encode_as_text(said, first=not texts)
            ids.append(tokenization.id_of(piece))
            texts += [said, piece]
            pending = ""
        said = tokenization.trimmed_between(self._without(pending), after=texts[-1] if texts else "", before="")
        ids += tokenization.encode_as_text(said, first=not texts)
        return ids, "".join([*texts, said])

    def _without(self, text: str) -> str:
        return text.replace(self.opening, "").replace(self.closing, "")
