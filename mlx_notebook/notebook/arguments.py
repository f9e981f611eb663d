"""Reads a magic's line: quoted words, options with values, `$name` for a Python object.

Knows no option by itself: the tables are in `options`. It checks form only (a number, a name, one of
these words); ranges are the core's. Every complaint is a one-line UsageError that names the option and
what was probably meant, raised before anything happens.
"""

from __future__ import annotations

import ast
import difflib
import keyword
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from mlx_notebook.core.placement import Reason
from mlx_notebook.errors import UnsupportedRequest
from mlx_notebook.notebook.printing import in_one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

YES = frozenset({"true", "yes", "on", "1"})
NO = frozenset({"false", "no", "off", "0"})


_DASHES = ("-", "\u2013", "\u2014")


class BadValueError(Exception):
    """A value of the wrong form; the message says what the option takes."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a magic.

    `convert` turns the word (or the object behind `$name`) into the value and raises BadValueError.
    `bare` is the value of the option standing alone; without it a value must follow. A `switch` takes
    its value only as `--name=false` or as a following true/false word.
    """

    flag: str
    help: str
    convert: Callable[[object], object]
    metavar: str = ""
    bare: object = None
    switch: bool = False
    repeat: bool = False
    choices: tuple[str, ...] = ()
    completes: str = ""

    @property
    def keyword(self) -> str:
        """The option's name in Python."""
        return keyword_of(self.flag)


@dataclass(frozen=True, slots=True)
class Magic:
    """What one magic's line may hold. `words` is how many plain words it takes: (least, most)."""

    name: str
    does: str
    words: tuple[int, int] = (0, 0)
    word_name: str = ""
    word_completes: str = ""
    options: tuple[Option, ...] = ()
    later: tuple[str, ...] = ()
    other_spellings: Mapping[str, str] = field(default_factory=dict)

    def option(self, flag: str) -> Option | None:
        """The option of that flag, if there is one."""
        return next((option for option in self.options if option.flag == flag), None)


@dataclass(slots=True)
class Parsed:
    """A line as values: options by their Python names (only those that were given), and plain words.

    A word is text, or the object that `$name` stands for.
    """

    values: dict[str, Any]
    words: list[Any]


def keyword_of(flag: str) -> str:
    """`--max-tokens` as `max_tokens`."""
    return flag.removeprefix("--").replace("-", "_")


def parse(magic: Magic, line: str, variables: Mapping[str, object]) -> Parsed:
    """Read a magic's line.

    Raises:
        UsageError: anything that the magic does not take, naming it.
        UnsupportedRequest: an option that a later version brings.
    """
    words = _split(magic, line)
    parsed = Parsed({}, [])
    while words:
        word = words.pop(0)
        if _looks_like_option(word):
            _read_option(magic, word, words, variables, parsed)
        else:
            parsed.words.append(_resolve(magic, magic.word_name, word, variables))
    _check_words(magic, parsed.words)
    return parsed


def _split(magic: Magic, line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        hint = 'a text with spaces or an apostrophe stands in double quotes: --option "it\'s a text"'
        raise UsageError(f"{magic.name}: a quote is not closed ({error}); {hint}") from None


def _looks_like_option(word: str) -> bool:
    """Dashes that word processors make count too; numbers such as -0.5 and a line of dashes do not."""
    if word[:1] not in _DASHES or not word.strip("".join(_DASHES)):
        return False
    return not (word[1].isdigit() or word[1] == ".")


def _read_option(magic: Magic, word: str, rest: list[str], variables: Mapping[str, object], parsed: Parsed) -> None:
    flag, equals, attached = word.partition("=")
    option = magic.option(flag)
    if option is None:
        raise _unknown(magic, flag)
    if option.keyword in parsed.values and not option.repeat:
        raise UsageError(f"{magic.name}: {flag} was given twice")
    if equals:
        value = _value(magic, option, attached, variables)
    elif option.switch and not (rest and rest[0].lower() in YES | NO):
        value = option.bare
    elif rest and not _looks_like_option(rest[0]):
        value = _value(magic, option, rest.pop(0), variables)
    elif option.bare is not None:
        value = option.bare
    else:
        raise UsageError(f"{magic.name}: {flag} needs a value: {flag} {option.metavar}")
    if option.repeat:
        parsed.values.setdefault(option.keyword, []).append(value)
    else:
        parsed.values[option.keyword] = value


def _value(magic: Magic, option: Option, word: str, variables: Mapping[str, object]) -> object:
    try:
        return option.convert(_resolve(magic, option.flag, word, variables))
    except BadValueError as error:
        raise UsageError(f"{magic.name}: {option.flag} takes {error}, not {word!r}") from None


def _resolve(magic: Magic, what: str, word: str, variables: Mapping[str, object]) -> object:
    """The Python object behind `$name`; any other word as it is, `$$` at its head being one plain `$`."""
    if word.startswith("$$"):
        return word[1:]
    name = word[1:]
    if not (word.startswith("$") and name.isidentifier()):
        return word
    if name not in variables:
        raise UsageError(
            f"{magic.name}: {what} {word}: there is no variable {name!r}{_meant(name, variables)}; "
            f"for the text itself write '${word}'"
        )
    return variables[name]


def _unknown(magic: Magic, flag: str) -> Exception:
    plain = "--" + flag.lstrip("-\u2013\u2014").replace("_", "-").lower()
    if plain in magic.later:
        text = f"{magic.name}: {plain} is planned, but not in this version; nothing was submitted"
        return in_one_line(UnsupportedRequest(text, reasons=(Reason("not-in-this-version", text),)))
    if plain in magic.other_spellings:
        return UsageError(f"{magic.name}: no option {flag}; here it is {magic.other_spellings[plain]}")
    flags = [option.flag for option in magic.options]
    if not flags:
        return UsageError(f"{magic.name} takes no options, and {flag} looks like one")
    suggestion = _meant(plain, flags) or f"; {magic.name}? lists them all"
    return UsageError(f"{magic.name}: no option {flag}{suggestion}")


def _meant(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _check_words(magic: Magic, words: list[Any]) -> None:
    least, most = magic.words
    if len(words) < least:
        raise UsageError(f"{magic.name} needs {magic.word_name}: {magic.name} {magic.word_name}")
    if len(words) <= most:
        return
    extra = words[most]
    if magic.name.startswith("%%"):
        raise UsageError(
            f"{magic.name}: {extra!r} is no option. The prompt goes on the lines below the first; "
            f'a value with spaces stands in quotes: --system "You are brief."'
        )
    takes = f"takes only {magic.word_name}" if most else "takes nothing after it"
    raise UsageError(f"{magic.name} {takes}, and there is {extra!r} as well (quote a value with spaces)")


# ---------------------------------------------------------------- forms of values


def number(value: object) -> object:
    """A real number; objects pass to the core, which checks them."""
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        raise BadValueError("a number") from None


def whole(value: object) -> object:
    """A whole number; objects pass to the core, which checks them."""
    if not isinstance(value, str):
        return value
    try:
        return int(value)
    except ValueError:
        raise BadValueError("a whole number") from None


def whole_or_auto(value: object) -> object:
    """A whole number or the word auto."""
    return "auto" if value == "auto" else whole(value)


def size(value: object) -> object:
    """Bytes as a number, or text such as 4GB, which the gateway reads."""
    return int(value) if isinstance(value, str) and value.isdigit() else value


def text(value: object) -> object:
    """Any text; objects pass to the core, which checks them."""
    return value


def texts(value: object) -> object:
    """A list of texts: a Python list, or the texts with commas between; objects pass to the core, which checks them."""
    if not isinstance(value, str):
        return value
    if value.startswith(("[", "(")):
        return literal("a list of texts")(value)
    return [one.strip() for one in value.split(",")]


def yes_or_no(value: object) -> object:
    """A truth value; objects pass to the core, which checks them."""
    if not isinstance(value, str):
        return value
    if value.lower() in YES:
        return True
    if value.lower() in NO:
        return False
    raise BadValueError("true or false")


def variable_name(value: object) -> object:
    """The name of a variable to bind."""
    if isinstance(value, str) and value.isidentifier() and not keyword.iskeyword(value):
        return value
    raise BadValueError("the name of a variable")


def one_of(*choices: str) -> Callable[[object], object]:
    """One of these words."""

    def convert(value: object) -> object:
        if isinstance(value, str) and value in choices:
            return value
        raise BadValueError(" or ".join((", ".join(choices[:-1]), choices[-1])))

    return convert


def literal(form: str) -> Callable[[object], object]:
    """A Python literal of the described form, or the object itself."""

    def convert(value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise BadValueError(form) from None

    return convert


def only_object(form: str) -> Callable[[object], object]:
    """Something that cannot be typed on the line: only `$name` brings it."""

    def convert(value: object) -> object:
        if isinstance(value, str):
            raise BadValueError(f"{form}, as $name")
        return value

    return convert
