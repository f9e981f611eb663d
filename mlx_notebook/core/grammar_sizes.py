"""How many bytes a compiled grammar may take, told from its source: the library does not say.

Two things take memory: its rules, from the beginning, and what it learns of texts while rows write, which all rows
with the grammar share and which stays. The second grows only where something is counted (`maxLength`, `{3,80}`,
`multipleOf`), and no further than a limit. The figures are of the measured growth of a process (docs/design.md),
rounded up.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.closing import one_of
from mlx_notebook.core.grammar import GrammarKind
from mlx_notebook.core.lark import spelled_out, words_of
from mlx_notebook.core.schema_tree import nodes
from mlx_notebook.core.work import multiple_of

if TYPE_CHECKING:
    from mlx_notebook.core.grammar import GrammarSpec

MOST_STATES = 50_000
"""How many states of its lexer a grammar may learn."""

_STATE = 512
_COUNTED = 13
"""States of one counted character at most: it may be several bytes, or escaped."""

_BASE = 96 << 10
_SUBSCHEMA, _WORD, _CHARACTER = 5 << 10, 5 << 9, 32
_PAIR = 1 << 11
"""Of properties of which one is asked for: each has a rule with each."""

_MOST_TIMES = 1_000_000
_PIECES = re.compile(
    r"\\(?:[pPxu]\{[^}]*\}|.)|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(?P<low>\d*),?(?P<high>\d*)\}|(?P<mark>[()|?*+])|.",
    re.DOTALL,
)


def estimate(spec: GrammarSpec) -> int:
    """Bytes that a compiled grammar takes, with what it may learn."""
    if spec.kind is GrammarKind.JSON_SCHEMA:
        rules, counted, states = _of_schema(spec.value)
    elif spec.kind is GrammarKind.GRAMMAR:
        rules, counted, states = _of_grammar(spec.source)
    else:
        rules, counted, states = 0, counted_in(spec.source) if spec.kind is GrammarKind.REGEX else 0, 0
    learned = _STATE * min(MOST_STATES, _COUNTED * counted + states)
    return _BASE + rules + _CHARACTER * len(spec.source) + learned


def _of_schema(schema: Any) -> tuple[int, int, int]:
    """Bytes of rules; counted characters; other states."""
    rules = states = 0
    lengths: set[int] = set()
    patterns: set[str] = set()
    for _, node in nodes(schema):
        rules += _SUBSCHEMA
        if isinstance(node, dict):
            rules += _PAIR * one_of(node) ** 2
            lengths.update(n for n in (node.get("maxLength"), node.get("minLength")) if isinstance(n, int))
            names = node.get("patternProperties")
            patterns.update([one for one in (node.get("pattern"),) if isinstance(one, str)])
            patterns.update(names if isinstance(names, dict) else ())
            states += multiple_of(node)
    counted = sum(min(n, _MOST_TIMES) for n in lengths) + sum(map(counted_in, patterns))
    return rules, counted, states


def _of_grammar(text: str) -> tuple[int, int, int]:
    words = [word.text for word in words_of(text)]
    counted = sum(counted_in(word) for word in words if word.startswith("/"))
    return _WORD * len(words), counted, len(text) + max(spelled_out(text, MOST_STATES).values(), default=0)


def counted_in(pattern: str) -> int:
    """How many characters a pattern counts: `{3,80}` up to 80, and inside of another count as often as that says."""
    outside: list[tuple[int, int]] = []  # what each group that is open stands in: counted so far, and plain
    counted = plain = last_counted = last_plain = 0
    for match in _PIECES.finditer(pattern):
        mark, numbers = match["mark"], (match["low"], match["high"])
        if mark == "(":
            outside.append((counted, plain))
            counted = plain = last_counted = last_plain = 0
        elif mark == ")" and outside:
            last_counted, last_plain = counted, plain
            around = outside.pop()
            counted, plain = around[0] + counted, around[1] + plain
        elif any(numbers):
            times = min(_MOST_TIMES, max(int(one[:7] or 0) for one in numbers))
            counted += max(0, times * (last_counted + last_plain) - last_counted)
            last_counted, last_plain = times * (last_counted + last_plain), 0
            counted = min(counted, _MOST_TIMES)
        elif mark is None:
            plain, last_counted, last_plain = plain + 1, 0, 1
    return min(_MOST_TIMES, counted + sum(one for one, _ in outside))
