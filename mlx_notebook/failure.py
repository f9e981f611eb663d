"""A failure as plain text, with nothing left that could pin memory.

An exception holds its traceback, a traceback its frames, and frames hold arrays: caches, logits, whole
batches. What leaves here is two strings; the frames are cleared and cut off from the exception, also where
user code kept the exception itself.
"""

from __future__ import annotations

import traceback


def as_text(error: BaseException) -> tuple[str, str]:
    """(message, traceback text) of an exception; clears the frames of the whole chain behind it.

    The message is one line naming the type, as Python prints it last. Call it inside the `except` block
    and keep nothing else of the exception.
    """
    message = "".join(traceback.format_exception_only(error)).strip()
    text = "".join(traceback.format_exception(error))
    without_frames(error)
    return message, text


def without_frames(error: BaseException) -> BaseException:
    """The same exception, its chain cut off from the frames, which are cleared."""
    for link in _chain(error):
        traceback.clear_frames(link.__traceback__)
        link.__traceback__ = None
    return error


def _chain(error: BaseException) -> list[BaseException]:
    """The exception, its causes and contexts, and a group's members: each once."""
    found: dict[int, BaseException] = {}
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is None or id(link) in found:
            continue
        found[id(link)] = link
        waiting += [link.__cause__, link.__context__]
        if isinstance(link, BaseExceptionGroup):
            waiting += link.exceptions
    return list(found.values())
