"""The options of every magic, as tables: parsing, completion and help all read these.

A row says what an option is called, what it does and what form its value has. Sampling options carry
the public Python names with dashes; their ranges are the core's.
"""

from __future__ import annotations

from mlx_notebook.core.options import OTHER_SPELLINGS
from mlx_notebook.notebook.arguments import (
    Magic,
    Option,
    literal,
    number,
    one_of,
    only_object,
    size,
    text,
    texts,
    variable_name,
    whole,
    whole_or_auto,
    yes_or_no,
)
from mlx_notebook.notebook.prompts import SEPARATOR

VIEWS = ("stream", "table", "quiet")
DTYPES = ("float32", "float16", "bfloat16", "4bit")


def _flag_of(keyword: str) -> str:
    return "--" + keyword.replace("_", "-")


def _switch(flag: str, does: str) -> Option:
    return Option(flag, does, yes_or_no, bare=True, switch=True, choices=("true", "false"))


_INTO = Option("--into", "bind the handle to this variable", variable_name, "NAME", completes="variable")

_CELL = (
    _INTO,
    Option("--gateway", "which gateway answers (the current one)", text, "NAME", completes="gateway"),
    Option("--view", "stream, table or quiet (stream)", one_of(*VIEWS), "VIEW", choices=VIEWS),
    _switch("--wait", "block until the answer is complete"),
    _switch("--keep", "leave the view live at the end, with its buttons"),
)

_MANY = (
    Option("--split", "several prompts, between lines that are SEP (---)", text, "[SEP]", bare=SEPARATOR),
    Option("--n", "so many answers to each prompt (1)", whole, "K"),
    _switch("--fill", "put your variables in for {{name}}"),
    Option("--chat", "the next turn of this chat", text, "NAME", completes="chat"),
    Option(
        "--with",
        "a dictionary of options, or a gateway; repeat it to compare",
        only_object("a dictionary of options or a gateway"),
        "$OPTIONS",
        repeat=True,
    ),
)

_PROMPT = (
    Option("--system", "a system message before the prompt", text, "TEXT"),
    _switch("--raw", "no chat template: the model continues the text"),
    _switch("--allow-special", "special tokens written in the prompt count as such"),
    Option("--chat-template-kwargs", "more values for the chat template", literal("a dictionary"), "DICT"),
)

_SAMPLING = (
    Option("--max-tokens", "most tokens to generate (256)", whole, "N"),
    Option("--temperature", "0 takes the likeliest token, higher is freer (0)", number, "T"),
    Option("--top-p", "draw from the likeliest tokens of this joint probability (1: all)", number, "P"),
    Option("--top-k", "draw from the K likeliest tokens (0: all)", whole, "K"),
    Option("--min-p", "leave out tokens below this share of the likeliest one's probability (0)", number, "P"),
    Option("--xtc-probability", "how often the likeliest tokens are left out (0)", number, "P"),
    Option("--xtc-threshold", "which count as likeliest for that (0.1)", number, "P"),
    Option("--repetition-penalty", "over 1 makes tokens that occurred less likely (1)", number, "X"),
    Option("--repetition-context-size", "how many tokens it looks back (20)", whole, "N"),
    Option("--presence-penalty", "subtracted from tokens that occurred (0)", number, "X"),
    Option("--presence-context-size", "how many tokens it looks back (20)", whole, "N"),
    Option("--frequency-penalty", "subtracted once for each time a token occurred (0)", number, "X"),
    Option("--frequency-context-size", "how many tokens it looks back (20)", whole, "N"),
    Option("--logit-bias", "added to tokens' logits: {id: bias}", literal("a dictionary {id: bias}"), "DICT"),
    Option("--seed", "makes draws repeatable (drawn and recorded)", whole, "N"),
    Option("--stop", "end before this text; repeat it, or $list", text, "TEXT", repeat=True),
    Option("--logprobs", "keep log-probabilities, and of K alternatives", whole, "[K]", bare=True),
    Option("--logits-processors", "your own functions over the logits", only_object("a function or a list"), "$F"),
    Option(
        "--sampling",
        "explicit, or model: the model's own recommended values (explicit)",
        one_of("explicit", "model"),
        "KIND",
        choices=("explicit", "model"),
    ),
)

_SHAPE = (
    Option("--json-schema", "JSON of this schema: a dictionary, JSON text or a pydantic class", text, "$SCHEMA"),
    Option("--regex", "text that matches the whole pattern", text, "PATTERN"),
    Option("--choices", "one of these texts", texts, "A,B,C"),
    Option("--grammar", "text of this Lark grammar", text, "$LARK"),
)

_QUEUE = (
    Option("--priority", "higher goes first (0)", whole, "N"),
    Option("--deadline", "cancel when it is not done after so many seconds", number, "SECONDS"),
    Option(
        "--cache-prompt",
        "whether this prompt may be kept for reuse (true)",
        yes_or_no,
        "true|false",
        bare=True,
        switch=True,
        choices=("true", "false"),
    ),
)

_LATER = (
    "--markdown",
    "--adapter",
    "--image",
    "--images",
    "--tools",
    "--draft",
)

GENERATE = Magic(
    "%%mlxgen",
    "Submit the cell's text as a prompt. The answer streams below the cell while you work on.",
    options=(*_CELL, *_MANY, *_PROMPT, *_SHAPE, *_SAMPLING, *_QUEUE),
    later=_LATER,
    other_spellings={_flag_of(theirs): _flag_of(ours) for theirs, ours in OTHER_SPELLINGS.items()},
)

LOAD = Magic(
    "%mlxload",
    "Load a model and make it current.",
    words=(1, 1),
    word_name="MODEL",
    word_completes="model",
    options=(
        Option("--batch", "most rows at a time, or auto (auto)", whole_or_auto, "N"),
        Option("--kv", "how keys and values are kept (native)", text, "SCHEME", choices=("native", "8bit", "4bit")),
        Option("--kv-budget", "memory for the rows: bytes, 4GB or auto (auto)", size, "BYTES"),
        Option("--prompt-cache", "memory for prompts kept for reuse: bytes or 1GB (1GB)", size, "BYTES"),
        _switch("--deterministic", "the same text whatever else runs"),
        Option("--dtype", "type of the weights (the model's own; float32 on a Linux CPU)", text, "T", choices=DTYPES),
        Option("--revision", "which revision of a Hugging Face model", text, "R"),
        Option("--name", "name of the gateway (the model's)", text, "NAME"),
        _switch("--replace", "close the gateway of that name first, instead of after"),
        _switch("--trust-remote-code", "run Python code that comes with the model"),
        Option("--into", "bind the gateway to this variable", variable_name, "VAR", completes="variable"),
    ),
)

STATUS = Magic("%mlxstatus", "Show the gateways, their rows, memory, and who holds the device.")
SHOW = Magic("%mlxshow", "Show an answer again.", words=(1, 1), word_name="ID", word_completes="any_id")
CANCEL = Magic(
    "%mlxcancel",
    "Cancel one request, all of them, or (without an argument) those of the latest cell.",
    words=(0, 1),
    word_name="[ID|all]",
    word_completes="live_id",
)
UNLOAD = Magic(
    "%mlxunload",
    "Close the current gateway, or the named one, and free its model.",
    words=(0, 1),
    word_name="[NAME]",
    word_completes="gateway",
)
CHAT = Magic(
    "%mlxchat",
    "Show a chat, or change it; without a name: list the chats.",
    words=(0, 1),
    word_name="[NAME]",
    word_completes="chat",
    options=(
        _switch("--reset", "drop every turn"),
        _switch("--undo", "drop the last turn"),
        Option("--export", "bind its list of messages to this variable", variable_name, "VAR", completes="variable"),
    ),
)
WHY = Magic(
    "%mlxwhy",
    "Say in words where a request's time went: what it waited for, and why. Without an argument: the latest one.",
    words=(0, 1),
    word_name="[ID]",
    word_completes="any_id",
)
DASH = Magic(
    "%mlxdash",
    "Show what the batch does now: places, rows and why they wait, memory; act on rows, pause, step.",
    words=(0, 1),
    word_name="[GATEWAY]",
    word_completes="gateway",
)
TRACE = Magic(
    "%mlxtrace",
    "Show the timeline: every row step by step, tied to its text. Without an argument: all rows that the log holds.",
    words=(0, 1),
    word_name="[ID]",
    word_completes="any_id",
    options=(
        Option("--last", "only the last so many requests", whole, "N"),
        Option(
            "--save",
            "write the whole log to this file instead, for Perfetto or load_trace; no text is in it",
            text,
            "FILE",
        ),
        _switch("--text", "with --save: prompts and answers too"),
    ),
)
MODELS = Magic("%mlxmodels", "List the models on this machine, their size, and whether they fit.")

MAGICS = (GENERATE, LOAD, STATUS, SHOW, CANCEL, CHAT, DASH, TRACE, WHY, UNLOAD, MODELS)


def help_text(magic: Magic) -> str:
    """The magic's help page, as `%%mlxgen?` shows it."""
    lines = [magic.does, "", "    " + _usage(magic)]
    if magic is GENERATE:
        lines += ["    the prompt, as it stands"]
    if magic.options:
        left = [f"{option.flag} {option.metavar}".rstrip() for option in magic.options]
        width = max(map(len, left))
        lines += ["", "Options (in brackets: what holds without them)", ""]
        lines += [f"    {name:{width}}  {option.help}" for name, option in zip(left, magic.options, strict=True)]
        lines += [
            "",
            "A value with spaces stands in quotes. An option whose whole value is $name takes that",
            "Python object; $$name is the text $name. Options complete on Tab.",
        ]
    return "\n".join(lines)


def _usage(magic: Magic) -> str:
    parts = [magic.name, magic.word_name, "[options]" if magic.options else ""]
    return " ".join(part for part in parts if part)
