"""A user's keywords, checked one by one and frozen: ranges, spellings, and names that come later.

Everything wrong is said before anything is allocated: `TypeError` for a name or type, `ValueError`
for a value (with its range), `UnsupportedRequest` for a name that a later version brings. Range
checks are a safety feature: an id outside the vocabulary would reach memory that is not ours.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from mlx_notebook.core.grammar import CHECKS, GrammarKind, GrammarSpec, is_model_class, only_one
from mlx_notebook.core.placement import Reason
from mlx_notebook.core.request import SamplingOptions
from mlx_notebook.errors import UnsupportedRequest

LATER_OPTIONS = {
    "adapter": "adapters",
    "images": "media",
    "tools": "tool calls",
    "draft": "speculative decoding",
}
"""Names that the interface has fixed but this version does not serve, with what brings them."""

OTHER_SPELLINGS = {
    "temp": "temperature",
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "max_length": "max_tokens",
    "top_logprobs": "logprobs",
    "response_format": "json_schema",
    "num_return_sequences": "n",
    "stop_sequences": "stop",
    "system_prompt": "system",
    "random_seed": "seed",
    "repeat_penalty": "repetition_penalty",
    "timeout": "deadline",
}

MAX_LOGPROB_ALTERNATIVES = 1_000
MAX_STOP_STRING = 10_000
SEED_LIMIT = 2**64


@dataclass(frozen=True, slots=True, eq=False)
class ParsedOptions:
    """All of a request's options, checked. `given` holds what the user named, for the record."""

    sampling: SamplingOptions
    seed_given: bool = False
    system: str | None = None
    raw: bool = False
    n: int = 1
    priority: int = 0
    deadline: float | None = None
    cache_prompt: bool = True
    allow_special: bool = False
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    logits_processors: tuple[Callable[[Any, Any], Any], ...] = ()
    grammar: GrammarSpec | None = None
    model_class: type | None = None

    def to_dict(self) -> dict[str, Any]:
        """What holds, as plain values under the public option names (callables by name)."""
        values: dict[str, Any] = {f.name: getattr(self.sampling, f.name) for f in fields(SamplingOptions)}
        values["logit_bias"] = dict(self.sampling.logit_bias)
        values["stop"] = list(self.sampling.stop)
        for name in ("system", "raw", "n", "priority", "deadline", "cache_prompt", "allow_special"):
            values[name] = getattr(self, name)
        values["chat_template_kwargs"] = dict(self.chat_template_kwargs)
        values["logits_processors"] = [getattr(p, "__name__", type(p).__name__) for p in self.logits_processors]
        values |= {str(kind): None for kind in GrammarKind}
        if self.grammar is not None:
            values[str(self.grammar.kind)] = self.grammar.value
        return values


def parse_options(
    options: Mapping[str, Any],
    *,
    vocab_size: int,
    draw_seed: Callable[[], int],
    recommended: Mapping[str, Any] | None = None,
) -> ParsedOptions:
    """Check a request's keywords.

    Args:
        options: the user's keywords, by public name.
        vocab_size: token ids must be below it.
        draw_seed: gives a seed where the user named none; it is recorded.
        recommended: the model's own sampling values, used with `sampling="model"` for what the user left out.

    Raises:
        TypeError: an unknown name (the nearest known one is said) or a value of the wrong type.
        ValueError: a value out of its range, which is said.
        GrammarError: a shape that is too large, too deep, empty or no JSON.
        UnsupportedRequest: a name that a later version brings.
    """
    refuse_unknown(options)
    values = {name: value for name, value in options.items() if value is not None or name == "logprobs"}
    mode = values.pop("sampling", "explicit")
    if not isinstance(mode, str) or mode not in ("explicit", "model"):
        raise ValueError(f"sampling={shown(mode)}: 'explicit' (only what you name) or 'model' (the model's own values)")
    if mode == "model":
        known = {name: value for name, value in (recommended or {}).items() if name in _SAMPLING_CHECKS}
        values = {**known, **values}
    checked: dict[str, Any] = {}
    seed_given = "seed" in values
    if not seed_given:
        values["seed"] = draw_seed()
    for name, value in values.items():
        if name in _SAMPLING_CHECKS:
            checked[name] = _SAMPLING_CHECKS[name](name, value, vocab_size)
    other = {
        name: _OTHER_CHECKS[name](name, value, vocab_size) for name, value in values.items() if name in _OTHER_CHECKS
    }
    shapes = [check(str(kind), values[kind]) for kind, check in CHECKS.items() if kind in values]
    schema = values.get(GrammarKind.JSON_SCHEMA)
    return ParsedOptions(
        sampling=SamplingOptions(**checked),
        seed_given=seed_given,
        grammar=only_one(shapes),
        model_class=schema if is_model_class(schema) else None,
        **other,
    )


def refuse_unknown(options: Iterable[str]) -> None:
    """Raise for the first name that is no option: with our spelling, the nearest name, or what brings it."""
    for name in options:
        if name in _SAMPLING_CHECKS or name in _OTHER_CHECKS or name in _SHAPES or name == "sampling":
            continue
        if name in LATER_OPTIONS:
            raise not_served(f"option {name!r}", name, LATER_OPTIONS[name])
        ours = OTHER_SPELLINGS.get(name)
        if ours is None:
            close = difflib.get_close_matches(name, option_names(), n=1)
            ours = close[0] if close else None
        hint = f": did you mean {ours!r}?" if ours else f"; known options: {', '.join(option_names())}"
        raise TypeError(f"unknown option {name!r}{hint}")


def not_served(what: str, name: str, brings: str) -> UnsupportedRequest:
    """The refusal of a name that the interface has fixed and this version does not serve.

    Args:
        what: the thing in a sentence, such as "option 'draft'".
        name: its public name.
        brings: what it will come with, in the plural.
    """
    text = f"{what} is not served by this version: {brings} come with a later one."
    return UnsupportedRequest(text, reasons=[Reason(f"{name}-unsupported", text)])


def option_names() -> list[str]:
    """Every option that this version serves, in alphabetical order."""
    return sorted([*_SAMPLING_CHECKS, *_OTHER_CHECKS, *_SHAPES, "sampling"])


# ---------------------------------------------------------------- checks, one a kind of value

Check = Callable[[str, Any, int], Any]


SHOWN = 80
"""How much of a wrong value an error shows."""


def shown(value: object) -> str:
    """A value for an error's text, cut; a value that cannot even be shown must not hide what is wrong with it."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a user's __repr__, or an int too long for Python to print
        return f"<{type(value).__name__}>"
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "\u2026"


def _as_float(name: str, value: Any, bounds: str) -> float:
    if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
        raise TypeError(f"{name}={shown(value)}: {bounds}, not {type(value).__name__}")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name}={shown(value)} is out of range: {bounds}") from None


def _number(low: float, high: float, *, low_open: bool = False) -> Check:
    bounds = f"a number {'above' if low_open else 'from'} {low:g} to {high:g}"

    def check(name: str, value: Any, _vocab: int) -> float:
        number = _as_float(name, value, bounds)
        if not math.isfinite(number) or not low <= number <= high or (low_open and number == low):
            raise ValueError(f"{name}={shown(value)} is out of range: {bounds}")
        return number

    return check


def _finite(name: str, value: Any, _vocab: int) -> float:
    bounds = "a number from -10000 to 10000"
    number = _as_float(name, value, bounds)
    if not math.isfinite(number) or abs(number) > 1e4:
        raise ValueError(f"{name}={shown(value)} is out of range: {bounds}")
    return number


def _integer(low: int, high: int | None = None) -> Check:
    bounds = f"a whole number from {low}" + ("" if high is None else f" to {high}")

    def check(name: str, value: Any, _vocab: int) -> int:
        return as_int(name, value, low, high, bounds)

    return check


def as_int(name: str, value: Any, low: int, high: int | None, bounds: str) -> int:
    """`value` as an int within [low, high]; NumPy integers pass, floats and bools do not."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}={shown(value)}: {bounds}, not {type(value).__name__}")
    number = int(value.__index__())
    if number < low or (high is not None and number > high):
        raise ValueError(f"{name}={shown(value)} is out of range: {bounds}")
    return number


def _top_k(name: str, value: Any, vocab: int) -> int:
    return as_int(name, value, 0, vocab, f"a whole number from 0 (off) to {vocab} (the vocabulary)")


def _seed(name: str, value: Any, _vocab: int) -> int:
    return as_int(name, value, 0, SEED_LIMIT - 1, "a whole number from 0 to 2**64 - 1")


def _logprobs(name: str, value: Any, vocab: int) -> int | None:
    if value is None or value is False:
        return None
    if value is True:
        return 0
    most = min(vocab, MAX_LOGPROB_ALTERNATIVES)
    return as_int(name, value, 0, most, f"None, True, or the number of alternatives, from 0 to {most}")


def _logit_bias(name: str, value: Any, vocab: int) -> tuple[tuple[int, float], ...]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}: a dictionary from token id to bias, not {type(value).__name__}")
    bounds = f"token ids run from 0 to {vocab - 1}"
    pairs = {
        as_int(f"{name} key", key, 0, vocab - 1, bounds): _finite(f"{name}[{shown(key)}]", bias, vocab)
        for key, bias in value.items()
    }
    return tuple(sorted(pairs.items()))


def _stop(name: str, value: Any, _vocab: int) -> tuple[str, ...]:
    texts = (value,) if isinstance(value, str) else value
    if not isinstance(texts, Iterable) or isinstance(texts, Mapping | bytes):
        raise TypeError(f"{name}: a string or a list of strings, not {type(value).__name__}")
    checked = []
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{name}: each stop is a string, not {type(text).__name__}")
        if not 0 < len(text) <= MAX_STOP_STRING:
            raise ValueError(f"{name}: a stop string has from 1 to {MAX_STOP_STRING} characters, this one {len(text)}")
        checked.append(text)
    return tuple(dict.fromkeys(checked))


def _flag(name: str, value: Any, _vocab: int) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{name}={shown(value)}: True or False, not {type(value).__name__}")
    return value


def _text(name: str, value: Any, _vocab: int) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name}: a string, not {type(value).__name__}")
    return value


def _mapping(name: str, value: Any, _vocab: int) -> dict[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise TypeError(f"{name}: a dictionary with string keys, not {type(value).__name__}")
    return dict(value)


def _callables(name: str, value: Any, _vocab: int) -> tuple[Callable[[Any, Any], Any], ...]:
    items = (value,) if callable(value) else tuple(value) if isinstance(value, Iterable) else (value,)
    for item in items:
        if not callable(item):
            raise TypeError(f"{name}: functions (token_ids, logits) -> logits, not {type(item).__name__}")
    return items


_SAMPLING_CHECKS: dict[str, Check] = {
    "max_tokens": _integer(1, 10_000_000),
    "temperature": _number(0.0, 100.0),
    "top_p": _number(0.0, 1.0, low_open=True),
    "top_k": _top_k,
    "min_p": _number(0.0, 1.0),
    "xtc_probability": _number(0.0, 1.0),
    "xtc_threshold": _number(0.0, 0.5),
    "logit_bias": _logit_bias,
    "repetition_penalty": _number(0.0, 1e4, low_open=True),
    "repetition_context_size": _integer(1, 10_000_000),
    "presence_penalty": _finite,
    "presence_context_size": _integer(1, 10_000_000),
    "frequency_penalty": _finite,
    "frequency_context_size": _integer(1, 10_000_000),
    "seed": _seed,
    "stop": _stop,
    "logprobs": _logprobs,
}

_SHAPES = tuple(str(kind) for kind in GrammarKind)

_OTHER_CHECKS: dict[str, Check] = {
    "system": _text,
    "raw": _flag,
    "n": _integer(1, 10_000),
    "priority": _integer(-1_000_000, 1_000_000),
    "deadline": _number(0.0, 1e9, low_open=True),
    "cache_prompt": _flag,
    "allow_special": _flag,
    "chat_template_kwargs": _mapping,
    "logits_processors": _callables,
}
