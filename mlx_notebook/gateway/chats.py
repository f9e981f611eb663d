"""Chats: named lists of turns, each of which sees the answers of those before it.

Turns run in order: a turn that is submitted while the one before still runs gets its handle at once and its
prompt when that is over. A turn that fails or is cancelled is not kept. Running the cell of a turn again goes back
to before that turn, since what came after it answered something else.

Threads: anybody may call anything; the lock guards the list of turns. Whether a turn is over is read off its
handle whenever somebody looks, so that no thread has to be told.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from mlx_notebook.core.rows import RowStatus
from mlx_notebook.gateway.hooks import current_execution

if TYPE_CHECKING:
    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.gateway.handle import Handle
    from mlx_notebook.gateway.hooks import Execution

Message = dict[str, str]


@dataclass(slots=True, eq=False)
class Turn:
    """One question with its answer (None while it runs). `system` is what holds from this turn on, if it says so."""

    text: str
    system: str | None
    execution: Execution | None
    handle: Handle | None = None
    answer: str | None = None


class Submitted(NamedTuple):
    """What submitting a turn did: its handle, and how many turns were dropped to go back to before it."""

    handle: Handle
    dropped: int


class Chat:
    """One conversation. Made by `chats.chat(name)`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.RLock()
        self._turns: list[Turn] = []

    @property
    def messages(self) -> list[Message]:
        """The system message if there is one, then question and answer of every finished turn. A copy."""
        with self._lock:
            self._note_ends()
            return _messages(self._turns)

    def __len__(self) -> int:
        """How many turns there are, those that still run included."""
        with self._lock:
            self._note_ends()
            return len(self._turns)

    def submit(self, gateway: Gateway, text: str, *, system: str | None = None, **options: Any) -> Submitted:
        """Submit the next turn; if this cell has a turn from an earlier run, go back to before that first.

        Args:
            gateway: who answers this turn.
            text: the question.
            system: the system message from this turn on.
            options: as for `Gateway.submit`, for a single answer.

        Raises:
            As `Gateway.submit`; then the chat is as it was.
        """
        if options.get("raw") or options.get("n", 1) != 1:
            raise ValueError("a turn of a chat takes one answer through the chat template: not raw, and n=1")
        execution = current_execution()
        with self._lock:
            self._note_ends()
            keep = self._before(execution)
            turn = Turn(text, system, execution)
            known = _messages([*self._turns[:keep], turn])
            gateway.check(known, **options)
            dropped = self._cut(keep)
            previous = self._turns[-1].handle if self._turns and self._turns[-1].answer is None else None
            # The list first: the thread that makes the prompt looks for the turn in it.
            self._turns.append(turn)
            try:
                if previous is None:
                    turn.handle = gateway.submit(known, **options)
                else:
                    turn.handle = gateway.submit_after(previous, lambda: self._prompt_of(turn), known, **options)
            except BaseException:
                self._turns.remove(turn)
                raise
            return Submitted(turn.handle, dropped)

    def undo(self) -> bool:
        """Drop the last turn, cancelled if it runs; False if there is none."""
        with self._lock:
            self._note_ends()
            return self._cut(max(0, len(self._turns) - 1)) > 0

    def reset(self) -> int:
        """Drop every turn; how many there were."""
        with self._lock:
            self._note_ends()
            return self._cut(0)

    def _prompt_of(self, turn: Turn) -> list[Message]:
        with self._lock:
            self._note_ends()
            if turn not in self._turns:
                raise LookupError(f"the chat {self.name!r} went back to before this turn")
            return _messages(self._turns[: self._turns.index(turn) + 1])

    def _before(self, execution: Execution | None) -> int:
        """How many turns stay when this cell runs again: those before its first turn of an earlier run."""
        for place, turn in enumerate(self._turns):
            then = turn.execution
            if execution is not None and then is not None and then.cell == execution.cell and then.run != execution.run:
                return place
        return len(self._turns)

    def _cut(self, keep: int) -> int:
        """Drop the turns from `keep` on, the last first, so that none of them starts on another's end."""
        cut, self._turns = self._turns[keep:], self._turns[:keep]
        for turn in reversed(cut):
            if turn.handle is not None:
                turn.handle.cancel()
        return len(cut)

    def _note_ends(self) -> None:
        """Take in the answers of turns that are over; those that failed or were cancelled go."""
        for turn in list(self._turns):
            if turn.handle is None or not turn.handle.done():
                continue
            if turn.handle.status is RowStatus.FINISHED:
                turn.answer = turn.handle.text_so_far
                turn.handle = None
            else:
                self._turns.remove(turn)

    def __repr__(self) -> str:
        turns = len(self)
        return f"<Chat {self.name!r}: {turns} turn{'' if turns == 1 else 's'}>"


def _messages(turns: list[Turn]) -> list[Message]:
    """The messages of turns in order; a last turn without an answer is the question to be answered."""
    system = next((turn.system for turn in reversed(turns) if turn.system is not None), None)
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    for turn in turns:
        if turn.answer is None and turn is not turns[-1]:
            continue
        messages.append({"role": "user", "content": turn.text})
        if turn.answer is not None:
            messages.append({"role": "assistant", "content": turn.answer})
    return messages


class Chats(Mapping[str, list[Message]]):
    """The chats of this process: `chats[name]` is the list of messages of one, a copy."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chats: dict[str, Chat] = {}

    def chat(self, name: str) -> Chat:
        """The chat of this name, made if there is none."""
        with self._lock:
            return self._chats.setdefault(name, Chat(name))

    def forget(self, name: str) -> None:
        """Drop a chat with its turns; again does nothing."""
        with self._lock:
            chat = self._chats.pop(name, None)
        if chat is not None:
            chat.reset()

    def __getitem__(self, name: str) -> list[Message]:
        with self._lock:
            chat = self._chats.get(name)
            known = ", ".join(self._chats) or "none"
        if chat is None:
            raise KeyError(f"no chat is called {name!r}; there are: {known}")
        return chat.messages

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            return iter(list(self._chats))

    def __len__(self) -> int:
        with self._lock:
            return len(self._chats)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name!r}: {messages!r}" for name, messages in self.items()) + "}"


chats = Chats()
