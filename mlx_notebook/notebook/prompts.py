"""From a cell's text to its prompts: `--split` cuts it, `--fill` puts variables in; else it is one, as it stands.

Cut first, fill then: what a variable holds is data, it never cuts a prompt and is never filled in turn.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

SEPARATOR = "---"

_FIELD = re.compile(r"\{\{\s*([^\W\d]\w*)\s*\}\}")


def prompts_of(magic: str, cell: str, *, separator: str | None, variables: Mapping[str, object] | None) -> list[str]:
    """The prompts of a cell.

    Args:
        magic: its name, for complaints.
        cell: the text below the magic's line.
        separator: prompts stand between lines that are this; None for one prompt.
        variables: what `{{name}}` stands for; None leaves such text as it is.

    Raises:
        UsageError: there is no prompt, the separator is none, or a variable is missing.
    """
    # A line break before the end of the cell is the editor's, not the prompt's.
    parts = [cell.removesuffix("\n")] if separator is None else _split(magic, cell, separator)
    prompts = [part for part in parts if part.strip()]
    if not prompts:
        raise UsageError(f"{magic}: there is no prompt: it goes on the lines below the first")
    return prompts if variables is None else [_filled(magic, prompt, variables) for prompt in prompts]


def _split(magic: str, cell: str, separator: str) -> list[str]:
    mark = separator.strip()
    if not mark or "\n" in mark:
        raise UsageError(f"{magic}: --split takes the text of a line of its own between prompts, such as {SEPARATOR}")
    parts: list[list[str]] = [[]]
    for line in cell.split("\n"):
        if line.strip() == mark:
            parts.append([])
        else:
            parts[-1].append(line)
    return ["\n".join(lines).strip("\n") for lines in parts]


def _filled(magic: str, prompt: str, variables: Mapping[str, object]) -> str:
    def value(field: re.Match[str]) -> str:
        name = field[1]
        if name not in variables:
            raise UsageError(f"{magic}: --fill: there is no variable {name!r} for {field[0]}{_meant(name, variables)}")
        return str(variables[name])

    filled = _FIELD.sub(value, prompt)
    if not filled.strip():
        raise UsageError(f"{magic}: --fill leaves a prompt empty: {prompt.strip()}")
    return filled


def _meant(name: str, variables: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, [known for known in variables if not known.startswith("_")], n=1)
    return f"; did you mean {{{{{close[0]}}}}}?" if close else ""
