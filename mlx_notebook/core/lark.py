"""Reading a Lark grammar for what its compiler does not say: whether any finite text satisfies it, and how much it is.

Rules are found by their names, and each alternative by what it needs. Whatever is not understood counts as something
that ends, so that nothing is refused by mistake. All of it takes time linear in the text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from mlx_notebook.core.gates import Gates

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_TOKEN = re.compile(
    r"""
    (?P<skip>//[^\n]*|\#[^\n]*|[ \t\r]+)
    |(?P<newline>\n)
    |(?P<leaf>"(?:\\.|[^"\\\n])*+(?:"i?)?|/(?:\\.|[^/\\\n])*+(?:/[a-z]*)?|<[^>\n]*+>?|%[a-z]+)
    |(?P<name>[?!]?[A-Za-z_][A-Za-z0-9_\-]*)
    |(?P<mark>[()\[\]|:?*+~,.=&{}]|->|[0-9]+|.)
    """,
    re.VERBOSE,
)

# What is opened and not closed is one leaf to the end of its line: looking for the end anew behind each of many such
# marks would take for ever.


def endless_rule(text: str) -> tuple[str, int] | None:
    """The first rule that `start` needs and that no finite text satisfies, with its line; None if there is none."""
    if "%json" in text or "%lark" in text or "%llguidance" in text:  # grammars inside grammars are the compiler's alone
        return None
    rules = _Rules(_definitions(text))
    ends = rules.gates.least()
    if "start" not in rules.gate_of or ends[rules.gate_of["start"]]:
        return None
    guilty = next((name for name in rules.needed(ends) if rules.needs_itself(name, ends)), "start")
    return guilty, rules.line_of[guilty]


class Word(NamedTuple):
    """A word of a grammar, the definition that it stands in, and where: its line, its place in the text."""

    text: str
    owner: str
    line: int
    at: int

    @property
    def in_terminal(self) -> bool:
        """Whether it is part of a terminal, whose name is in capitals."""
        return self.owner[:1].isupper()


def words_of(text: str) -> Iterator[Word]:
    """Each word of a grammar but its blanks and comments."""
    line, owner, fresh = 1, "", True
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "mark"
        if kind == "newline":
            line, fresh = line + 1, True
        elif kind != "skip":
            if fresh and kind == "name":  # a definition's, unless its last one goes on here
                owner = match.group().lstrip("?!_")
            fresh = False
            yield Word(match.group(), owner, line, match.start())


def spelled_out(text: str, most: int) -> dict[str, int]:
    """How many characters each terminal has with those that it names in their places; counted up to `most`."""
    own: dict[str, int] = {}
    named: dict[str, list[str]] = {}
    for word in words_of(text):
        if word.in_terminal:
            own[word.owner] = own.get(word.owner, 0) + len(word.text)
            named.setdefault(word.owner, []).append(word.text.lstrip("?!_"))
    sizes: dict[str, int] = {}
    for name in own:
        waiting = [(name, False)]
        while waiting:
            one, below = waiting.pop()
            if below:
                sizes[one] = min(
                    most, own[one] + sum(sizes[other] for other in named[one] if other in own and other != one)
                )
            elif one not in sizes:
                sizes[one] = own[one]  # till what it names is known; in a circle for good: the compiler refuses those
                waiting.append((one, True))
                waiting += [(other, False) for other in named[one] if other in own and other not in sizes]
    return sizes


def _definitions(text: str) -> dict[str, tuple[int, list[str]]]:
    """Each rule's line and the pieces of its body."""
    pieces: list[tuple[str, str, int]] = []
    line = 1
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "mark"
        if kind == "newline":
            line += 1
        if kind != "skip":
            pieces.append((kind, match.group(), line))
    found: dict[str, tuple[int, list[str]]] = {}
    body: list[str] | None = None
    at, fresh = 0, True
    while at < len(pieces):
        kind, word, number = pieces[at]
        colon = _colon_after(pieces, at) if fresh and kind == "name" else None
        if colon is not None:
            body = []
            found[word.lstrip("?!")] = number, body
            at, fresh = colon + 1, False
            continue
        if kind == "newline":
            fresh = True
        elif fresh and kind == "leaf" and word.startswith("%"):
            body, fresh = None, False  # a directive
        else:
            fresh = False
            if body is not None:
                body.append("." if kind == "leaf" else word)
        at += 1
    return found


def _colon_after(pieces: list[tuple[str, str, int]], at: int) -> int | None:
    """Where the colon of a definition stands that begins here, past its attributes and priority."""
    depth = 0
    for place in range(at + 1, len(pieces)):
        word = pieces[place][1]
        if word == "\n":
            return None
        if word == "[":
            depth += 1
        elif word == "]":
            depth -= 1
        elif word == ":" and not depth:
            return place
        elif not depth and word != "." and not word.isdigit():
            return None
    return None


class _Rules:
    """A grammar's rules as gates: a rule ends when one of its alternatives does, that when all of its parts do."""

    def __init__(self, definitions: dict[str, tuple[int, list[str]]]) -> None:
        self.gates = Gates()
        self.gate_of = {name: self.gates.new() for name in definitions}
        self.line_of = {name: line for name, (line, _) in definitions.items()}
        self._rules = set(self.gate_of.values())
        for name, (_, words) in definitions.items():
            self._read(self.gate_of[name], words)

    def needed(self, ends: list[bool]) -> list[str]:
        """The rules that keep `start` from ending, in the grammar's order."""
        seen = self._below(self.gate_of["start"], ends)
        return [name for name, gate in self.gate_of.items() if gate in seen or name == "start"]

    def needs_itself(self, name: str, ends: list[bool]) -> bool:
        """Whether it is a rule's own body that keeps it from ending."""
        gate = self.gate_of[name]
        return gate in self._below(gate, ends, until=self._rules)

    def _below(self, top: int, ends: list[bool], until: Collection[int] = ()) -> set[int]:
        """What keeps a gate from ending, without what is below `until`."""
        seen: set[int] = set()
        waiting = [top]
        while waiting:
            further = [one for one in self.gates.inputs[waiting.pop()] if not ends[one] and one not in seen]
            seen.update(further)
            waiting += [one for one in further if one not in until]
        return seen

    def _read(self, rule: int, words: list[str]) -> None:
        """Set a rule's gate by its body."""
        ways: list[list[int]] = [[]]
        outside: list[tuple[str, list[list[int]]]] = []  # what each bracket that is open now stands in
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            item: int | None = None
            if word == "|":
                ways.append([])
            elif word == "->":
                at += 1
            elif word in ("(", "["):
                outside.append((word, ways))
                ways = [[]]
            elif word in (")", "]") and outside:
                opened, around = outside.pop()
                item = self.gates.some([self.gates.all(way) for way in ways]) if opened == "(" else None
                ways = around
            elif word.lstrip("?!") in self.gate_of:
                item = self.gate_of[word.lstrip("?!")]
            if item is not None and not _may_be_missing(words[at : at + 3]):
                ways[-1].append(item)
        self.gates.set(rule, [self.gates.all(way) for way in ways], 1)


def _may_be_missing(rest: list[str]) -> bool:
    return bool(rest) and (rest[0] in ("?", "*") or rest[:2] in (["~", "0"], ["{", "0"], ["{", ","]))
