"""Prompts to token ids: chat templates in Jinja's sandbox, with the user's text kept text.

Templates are rendered by Hugging Face's `apply_chat_template`, which compiles them in
`jinja2.sandbox.ImmutableSandboxedEnvironment` (a test tries hostile ones). The template's own
control tokens steer the model; the same characters inside a message, or inside a value that is
handed on to the template (a tool's description, the docstring of a function given as one), are characters.

How: where none of these holds a control token's spelling, the rendered text is encoded in one
piece, exactly as mlx-lm does. Otherwise each such spelling is wrapped in marks before rendering
(`marks.py`); the rendered text is cut at the tokens that the template wrote (the unmarked ones),
the marks are taken out, and the pieces between are encoded as text. Control tokens are
boundaries for merging in both ways, so no other token changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

from mlx_notebook.models.marks import Marks, holds_control_tokens, plain, plain_options

if TYPE_CHECKING:
    from mlx_notebook.models.tokenization import Tokenization

Message: TypeAlias = Mapping[str, Any]
Prompt: TypeAlias = "str | Sequence[Message] | Iterable[SupportsIndex]"


class ChatTemplate:
    """The chat template of one tokenizer."""

    def __init__(self, tokenization: Tokenization) -> None:
        self._tokenization = tokenization
        tokenizer = tokenization.tokenizer
        has = getattr(tokenizer, "has_chat_template", None)
        self.present: bool = bool(has) if has is not None else getattr(tokenizer, "chat_template", None) is not None

    def render(self, messages: Sequence[Message], options: Mapping[str, Any] | None = None) -> str:
        """The prompt text of a conversation, up to where the model's answer begins.

        Args:
            messages: each with a `role` and a `content` text.
            options: passed on to the template, such as `enable_thinking`.

        Raises:
            ValueError: there is no template, or it refuses these messages (the message says what it said).
        """
        if not self.present:
            raise ValueError("this model has no chat template; give the prompt as text, with raw=True")
        settings = {"add_generation_prompt": True, **(options or {})}
        if settings.get("continue_final_message") and "add_generation_prompt" not in (options or {}):
            settings["add_generation_prompt"] = False
        settings.pop("tokenize", None)
        copies = [dict(m) for m in messages]
        try:
            with self._tokenization.lock:
                rendered = self._tokenization.tokenizer.apply_chat_template(copies, tokenize=False, **settings)
        except Exception as error:
            raise ValueError(_template_failure(error)) from error
        return str(rendered)

    def encode(
        self, messages: Sequence[Message], *, allow_special: bool, options: Mapping[str, Any] | None
    ) -> tuple[list[int], str]:
        """(ids, text) of a conversation; control tokens inside messages and options are text unless `allow_special`."""
        tokenization = self._tokenization
        messages, options = [plain(m) for m in messages], plain_options(options)
        # A template that the user gives is one: what it writes steers the model as the model's own does.
        said = {name: value for name, value in options.items() if name != "chat_template"}
        if allow_special or not holds_control_tokens(tokenization, [*messages, said]):
            text = self.render(messages, options)
            return tokenization.encode(text, allow_special=True), text
        marks = Marks.unlike([*messages, options, getattr(tokenization.tokenizer, "chat_template", None)])
        marked: list[Message] = [marks.put(tokenization, m) for m in messages]
        return marks.encode(tokenization, self.render(marked, {**options, **marks.put(tokenization, said)}))


def encode_prompt(
    tokenization: Tokenization,
    prompt: Prompt,
    *,
    system: str | None = None,
    raw: bool = False,
    allow_special: bool = False,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> tuple[list[int], str]:
    """Token ids and text of a prompt.

    Args:
        tokenization: of the model that will read it.
        prompt: text (a user's message where the model has a chat template and `raw` is false),
            a list of messages, or a list of token ids.
        system: text of a system message put first.
        raw: take the text as it is, without the chat template; begin tokens are still added.
        allow_special: read spellings of control tokens inside the prompt as those tokens.
        chat_template_kwargs: passed on to the chat template.

    Raises:
        TypeError: the prompt is of no such kind.
        ValueError: it is empty, a message is malformed, an option does not go with the prompt, an
            id is outside the vocabulary, or the template refuses.
    """
    if isinstance(prompt, str):
        return _encode_text(
            tokenization, prompt, system=system, raw=raw, allow_special=allow_special, options=chat_template_kwargs
        )
    listed = _as_list(prompt)
    if not listed:
        raise ValueError("the prompt is empty: give text, at least one message, or at least one token id")
    if isinstance(listed[0], Mapping):
        if raw:
            raise ValueError("raw=True takes text or token ids; a list of messages needs the chat template")
        messages = check_messages(listed)
        if system is not None:
            messages = _with_system(messages, system)
        return ChatTemplate(tokenization).encode(messages, allow_special=allow_special, options=chat_template_kwargs)
    _refuse_with_ids(system, chat_template_kwargs)
    ids = tokenization.check_ids(listed)
    return ids, tokenization.decode(ids)


def _encode_text(
    tokenization: Tokenization,
    prompt: str,
    *,
    system: str | None,
    raw: bool,
    allow_special: bool,
    options: Mapping[str, Any] | None,
) -> tuple[list[int], str]:
    _check_unicode(prompt, "the prompt")
    template = ChatTemplate(tokenization)
    if template.present and not raw:
        messages: list[Message] = [{"role": "user", "content": prompt}]
        if system is not None:
            messages = _with_system(messages, system)
        return template.encode(messages, allow_special=allow_special, options=options)
    why = "raw=True leaves the chat template out" if raw else "this model has no chat template"
    if system is not None:
        raise ValueError(f"system= needs a chat template, and {why}; put the text into the prompt instead")
    if options:
        raise ValueError(f"chat_template_kwargs= needs a chat template, and {why}")
    ids = tokenization.encode(prompt, add_special_tokens=True, allow_special=allow_special)
    if not ids:
        raise ValueError("the prompt is empty: it gives no tokens, so there is nothing to continue")
    return ids, prompt


def check_messages(messages: Sequence[Any]) -> list[Message]:
    """Messages with a `role` and a `content`, both text.

    Raises:
        TypeError: a message is no mapping, or a part of it no text.
        ValueError: a part is missing or empty; the message says which.
    """
    checked: list[Message] = []
    for position, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(f"message {position} is {type(message).__name__}, not a dict with 'role' and 'content'")
        for part in ("role", "content"):
            if part not in message:
                raise ValueError(f"message {position} has no {part!r}; each message needs 'role' and 'content'")
            if not isinstance(message[part], str):
                raise TypeError(f"message {position}: {part!r} is {type(message[part]).__name__}, not text")
            _check_unicode(message[part], f"message {position}")
        if not message["role"].strip():
            raise ValueError(f"message {position}: 'role' is empty; use 'system', 'user' or 'assistant'")
        checked.append(message)
    return checked


def _with_system(messages: list[Message], system: str) -> list[Message]:
    if not isinstance(system, str):
        raise TypeError(f"system= is {type(system).__name__}, not text")
    _check_unicode(system, "system=")
    if messages and messages[0].get("role") == "system":
        raise ValueError("system= was given, and the first message is a system message already; keep one of them")
    return [{"role": "system", "content": system}, *messages]


def _as_list(prompt: Any) -> list[Any]:
    if isinstance(prompt, Mapping | bytes | bytearray) or not hasattr(prompt, "__iter__"):
        raise TypeError(f"a prompt is text, a list of messages or a list of token ids, not {type(prompt).__name__}")
    shape = getattr(prompt, "shape", None)
    if shape is not None and len(shape) != 1:
        raise TypeError(f"token ids come as a flat list, not as an array of shape {tuple(shape)}")
    listed: list[Any] = prompt.tolist() if hasattr(prompt, "tolist") else list(prompt)
    if listed and any(isinstance(item, str) for item in listed):
        raise TypeError("a list of texts is several prompts; here one prompt is expected (text, messages or token ids)")
    return listed


def _refuse_with_ids(system: str | None, options: Mapping[str, Any] | None) -> None:
    if system is not None or options:
        name = "system=" if system is not None else "chat_template_kwargs="
        raise ValueError(f"{name} needs a chat template, and token ids are taken as they are")


def _check_unicode(text: str, what: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{what} holds half a character at position {error.start} (a lone surrogate); it is not valid text"
        ) from None


def _template_failure(error: Exception) -> str:
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    said = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return (
        f"the model's chat template refused these messages ({said}). "
        "Change the messages, or use raw=True to write the prompt yourself."
    )
