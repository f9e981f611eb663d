"""Asking for more tokens for a row, from any thread but the engine's: the answer comes between two steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_notebook.bell import Latch
from mlx_notebook.errors import MlxNotebookError, OverBudget, OverContext
from mlx_notebook.gateway.sizes import show_bytes
from mlx_notebook.gateway.waiting import sleep_until

if TYPE_CHECKING:
    from mlx_notebook.core.events import Extended
    from mlx_notebook.gateway.record import RowRecord
    from mlx_notebook.gateway.thread import Engine


def ask_to_extend(engine: Engine, record: RowRecord, tokens: int) -> int:
    """The limit that holds now.

    Raises:
        OverContext, OverBudget, MlxNotebookError: it could not be raised; the old one holds.
    """
    heard = Latch()
    answers: list[Extended] = []

    def tell(answer: Extended) -> None:
        answers.append(answer)
        heard.set()

    if record.done or not engine.extend(record.id, tokens, tell):
        raise refusal_of(None, record)
    sleep_until(lambda seconds: heard.wait(seconds) or not engine.alive, None)
    answer = answers[0] if answers else None
    if answer is None or answer.refused is not None:
        raise refusal_of(answer, record)
    return answer.max_tokens


def refusal_of(answer: Extended | None, record: RowRecord) -> MlxNotebookError:
    """The error that an answer stands for (None: nobody answered)."""
    if answer is not None and answer.refused == "context":
        return OverContext(
            f"request {record.id} would have {answer.needed} tokens with its prompt, and the model's context is"
            f" {answer.limit}: ask for fewer.",
            needed=answer.needed,
            limit=answer.limit,
        )
    if answer is not None and answer.refused == "budget":
        return OverBudget(
            f"request {record.id} would bring the rows to {show_bytes(answer.needed)} of KV memory and the budget is"
            f" {show_bytes(answer.limit)}: ask for fewer tokens, or wait until other rows are over.",
            needed=answer.needed,
            budget=answer.limit,
        )
    if record.done:
        return MlxNotebookError(f"request {record.id} is over: submit it again with a larger max_tokens.")
    return MlxNotebookError(f"request {record.id} is not in the queue yet, or its gateway is gone.")
