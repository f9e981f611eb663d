"""A user's policy, asked on the engine thread and contained there.

`policy(waiting, running) -> row ids, best first`, both lists of RowView; a RowView stands for its id. It runs
in the context of whoever made the gateway. The first time that it raises or answers nonsense it is reported and
put aside; admission goes on first come, first served. What names no row is ignored, and that is reported once.
"""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Iterable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.policy import id_of, view_of
from mlx_notebook.failure import as_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.core.rows import Row

log = logging.getLogger("mlx_notebook")


class UserPolicy:
    """A user's function with its context; `error` is (message, traceback text) once it has failed."""

    def __init__(self, function: Callable[[Any, Any], Iterable[object]]) -> None:
        self.error: tuple[str, str] | None = None
        self._function = function
        self._context = copy_context()
        self._has_named_nobody = False

    def order(self, waiting: list[Row], running: list[Row], now_ns: int) -> tuple[int, ...] | None:
        """The ids that the function answers; None where it was put aside."""
        if self.error is not None:
            return None
        views = [view_of(row, now_ns) for row in waiting], [view_of(row, now_ns) for row in running]
        try:
            answer = self._context.run(self._function, *views)
            if not isinstance(answer, Iterable):
                raise TypeError(f"a policy returns row ids, best first, not {type(answer).__name__}")  # noqa: TRY301
            return self._ids(answer, {row.id for row in (*waiting, *running)})
        except BaseException as error:  # noqa: BLE001 - user code: its failure must not stop the engine
            self.error = as_text(error)
            log.warning("the policy failed and is put aside; first come, first served from here: %s", self.error[0])
            return None

    def _ids(self, answer: Iterable[object], known: set[int]) -> tuple[int, ...]:
        ids: list[int] = []
        for named in answer:
            row_id = id_of(named)
            if row_id is not None and row_id in known:
                ids.append(row_id)
            elif not self._has_named_nobody:
                self._has_named_nobody = True
                log.warning(
                    "the policy named %s, which is no row that waits or runs: it is ignored, and so is"
                    " whatever else names none (this is said once)",
                    reprlib.repr(named),
                )
        return tuple(ids)
