"""Reading a Lark grammar for one thing that its compiler does not say: whether any finite text satisfies it.

Rules are found by their names, and each alternative by what it needs. Whatever is not understood counts as something
that ends, so that nothing is refused by mistake.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(
    r"""
    (?P<skip>//[^\n]*|\#[^\n]*|[ \t\r]+)
    |(?P<newline>\n)
    |(?P<leaf>"(?:\\.|[^"\\\n])*"i?|/(?:\\.|[^/\\\n])+/[a-z]*|<[^>\n]*>|%[a-z]+)
    |(?P<name>[?!]?[A-Za-z_][A-Za-z0-9_\-]*)
    |(?P<mark>[()\[\]|:?*+~,.=&{}]|->|[0-9]+|.)
    """,
    re.VERBOSE,
)

Alternatives = list[set[str]]
"""For each way through, the rules that it needs."""


def endless_rule(text: str) -> tuple[str, int] | None:
    """The first rule that `start` needs and that no finite text satisfies, with its line; None if there is none."""
    if "%json" in text or "%lark" in text or "%llguidance" in text:  # grammars inside grammars are the compiler's alone
        return None
    definitions = _definitions(text)
    needs = {name: _Reader(tokens).alternatives() for name, (_, tokens) in definitions.items()}
    ends: set[str] = set()
    while True:
        more = {
            name
            for name, ways in needs.items()
            if name not in ends and any(all(one in ends or one not in needs for one in way) for way in ways)
        }
        if not more:
            break
        ends |= more
    if "start" not in needs or "start" in ends:
        return None
    guilty = next((name for name in needs if name not in ends and any(name in way for way in needs[name])), "start")
    return guilty, definitions[guilty][0]


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


class _Reader:
    """Reads one body; `.` stands for any leaf."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._at = 0

    def alternatives(self) -> Alternatives:
        """What each alternative needs, up to a closing bracket."""
        ways: Alternatives = [set()]
        while self._at < len(self._words):
            word = self._words[self._at]
            if word in (")", "]"):
                break
            self._at += 1
            if word == "|":
                ways.append(set())
            elif word == "->":
                self._at += 1
            else:
                self._item(word, ways)
        return ways

    def _item(self, word: str, ways: Alternatives) -> None:
        inner: Alternatives = [set()]
        if word in ("(", "["):
            inner = self.alternatives()
            self._at += 1
        elif re.fullmatch(r"[?!]?[A-Za-z_][\w\-]*", word):
            inner = [{word.lstrip("?!")}]
        if word == "[" or self._may_be_missing():
            inner = [set()]
        # Of a group's own alternatives the one with the least needs counts; more than one at once stays undecided.
        ways[-1] |= min(inner, key=len) if len(inner) == 1 or any(not way for way in inner) else _either(inner, ways)

    def _may_be_missing(self) -> bool:
        rest = self._words[self._at : self._at + 3]
        return bool(rest) and (rest[0] in ("?", "*") or rest[:2] in (["~", "0"], ["{", "0"], ["{", ","]))


def _either(inner: Alternatives, ways: Alternatives) -> set[str]:
    """Split the way so far, one for each alternative of a group; with very many of them, need nothing."""
    if len(ways) > 200:
        return set()
    so_far = ways[-1]
    ways[-1:] = [so_far | way for way in inner[1:]] + [set(so_far)]
    return inner[0]
