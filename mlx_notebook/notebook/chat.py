"""Chats in cells: `%%mlxgen --chat NAME` submits a turn, `%mlxchat NAME` shows, resets, undoes or exports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from mlx_notebook.errors import MlxNotebookError
from mlx_notebook.gateway.chats import chats
from mlx_notebook.gateway.handles import Handles
from mlx_notebook.notebook import cell_rows
from mlx_notebook.notebook.cell_answers import Answers
from mlx_notebook.notebook.printing import in_one_line, say

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from mlx_notebook.gateway.chats import Message
    from mlx_notebook.gateway.gateway import Gateway

_NOT_IN_A_CHAT = {"n": "--n", "with": "--with", "raw": "--raw"}


def submit_turn(
    magic: str, name: object, gateway: Gateway, prompts: Sequence[str], options: Mapping[str, Any]
) -> Answers:
    """Submit a cell's text as the next turn of a chat; says so when the chat went back to before this cell.

    Raises:
        UsageError: an option that does not go with a chat; and all that `Gateway.submit` raises.
    """
    wrong = next((flag for key, flag in _NOT_IN_A_CHAT.items() if options.get(key)), None)
    if wrong is None and len(prompts) > 1:
        wrong = "--split"
    if wrong is not None:
        raise UsageError(f"{magic}: --chat takes one answer to one prompt; leave out {wrong}")
    if not isinstance(name, str) or not name.strip():
        raise UsageError(f"{magic}: --chat takes the name of a chat, not {name!r}")
    try:
        handle, dropped = chats.chat(name).submit(gateway, prompts[0], **options)
    except (MlxNotebookError, ValueError, TypeError) as error:
        raise in_one_line(error) from None
    handle.add_done_callback(cell_rows.remember_failure)
    if dropped:
        turns = "this turn was" if dropped == 1 else f"this turn and {dropped - 1} after it were"
        say(f"Chat {name} goes back to before this cell: {turns} dropped.")
    return Answers(Handles([handle]), (prompts[0],), several=False)


def chat_command(magic: str, name: str | None, options: Mapping[str, Any], variables: MutableMapping[str, Any]) -> None:
    """What `%mlxchat` does.

    Raises:
        UsageError: there is no such chat, or more than one thing was asked for.
    """
    if name is None:
        if options:
            raise UsageError(f"{magic} needs the name of a chat")
        _list_chats()
        return
    if name not in chats:
        known = ", ".join(chats) or "none yet; %%mlxgen --chat NAME begins one"
        raise UsageError(f"{magic}: there is no chat {name!r}; there are: {known}")
    if len(options) > 1:
        raise UsageError(f"{magic}: one of --reset, --undo and --export at a time")
    chat = chats.chat(name)
    if options.get("reset"):
        count = chat.reset()
        say(f"Chat {name} is empty: {count} turn{'' if count == 1 else 's'} dropped.")
    elif options.get("undo"):
        say(f"Chat {name}: the last turn was dropped." if chat.undo() else f"Chat {name} has no turn.")
    elif "export" in options:
        messages = chat.messages
        variables[options["export"]] = messages
        say(f"{options['export']} is the list of {name}'s {len(messages)} messages.")
    else:
        say(_transcript(chat.messages) or f"Chat {name} has no finished turn.")


def _list_chats() -> None:
    if not chats:
        say("There is no chat yet; %%mlxgen --chat NAME begins one.")
    for name in chats:
        count = len(chats.chat(name))
        say(f"{name}: {count} turn{'' if count == 1 else 's'}")


def _transcript(messages: Sequence[Message]) -> str:
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)
