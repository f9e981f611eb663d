"""Text for terminals: without the control characters that a model's text may hold."""

from __future__ import annotations

_CONTROL = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
"""C0, DEL and C1. Without its escape character a sequence that would recolour, move or retitle a terminal
is plain text; so nothing has to be remembered from one piece of text to the next."""


def printable(text: str) -> str:
    """`text` without control characters (line feeds and tabs stay) and without lone surrogates."""
    return text.translate(_CONTROL).encode("utf-8", "replace").decode("utf-8")
