"""One row's place in its grammar: which tokens may follow, and when the answer is whole.

A matcher has one owner, the row in the engine, and one thread. It moves only by tokens that were committed, so a
draw that is thrown away leaves no trace. Closing frees the native state, once; `live` counts what is not closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_notebook.errors import GrammarError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from mlx_notebook.engine.choices import ChoiceTally

MISFIT = "Parser Error: token"
"""How the library's words begin where a token does not fit; others say that it gave up before it knew."""

WORN = "lexer error: too many states"
"""How they begin where the library knows as many texts as it may; it need not be this row that taught it them."""

MOST_RENEWALS = 2
"""At one place of a row."""

live = 0
"""Matchers that are not closed; tests count."""


def nothing_left(token_id: int) -> GrammarError:
    """The error for a row whose draw gave a token that it could not have drawn."""
    return GrammarError(
        f"no token that the grammar allows could be drawn: token {token_id} does not fit or was excluded."
        " A logits processor or a bias may have excluded all that fit."
    )


def too_complex(said: str) -> GrammarError:
    """The error for a row whose grammar the library gave up on, with the first line of what it said."""
    return GrammarError(f"the grammar became too complex here: {(said.splitlines() or [''])[0]}")


class Matcher:
    """A row's matcher. Made by `Compiled.start`.

    Args:
        native: the library's matcher, this row's own.
        vocab_size: ids of the tokenizer; what lies beyond never fits.
        eos_ids: tokens that end a row; none of them comes before the grammar holds.
        after: token ids that must have come before the grammar holds (the end of a model's thinking).
        tally: sums up the probabilities of choices, where they are wanted.
        renew: makes another of the library's matchers, at the beginning: one for all rows that come to this, or for
            this one alone; or None.
    """

    def __init__(
        self,
        native: Any,
        vocab_size: int,
        *,
        eos_ids: tuple[int, ...] = (),
        after: tuple[int, ...] = (),
        tally: ChoiceTally | None = None,
        renew: Callable[[bool], Any] | None = None,
    ) -> None:
        global live
        self._native: Any = native
        self._renew = renew
        self._taken: list[int] = []
        self._renewals = 0, 0
        self.vocab_size = vocab_size
        self.words = -(-vocab_size // 32)
        self.eos_ids = eos_ids
        self._after = after
        self._recent: list[int] = []
        self.tally = tally
        live += 1

    @property
    def waits(self) -> bool:
        """Whether the grammar does not hold yet: any token of the tokenizer may come that does not end the row."""
        return bool(self._after)

    @property
    def satisfied(self) -> bool:
        """Whether the answer is whole and nothing can be added to it."""
        return not self._after and bool(self._native.is_stopped()) and not self._native.is_error()

    @property
    def native(self) -> Any:
        """The library's matcher, to fill masks with."""
        return self._native

    def accept(self, token_id: int) -> None:
        """Move on by a committed token.

        Raises:
            GrammarError: the grammar does not allow it here.
        """
        if self._after:
            size = len(self._after)
            self._recent = [*self._recent, token_id][-size:]
            if tuple(self._recent) == self._after:
                self._after = ()
            return
        while not self._takes(token_id):
            said = str(self._native.get_error()) if self._native.is_error() else MISFIT
            # Where states run out inside of a token, the library says that it does not fit.
            if not self._renewed(said, (WORN, MISFIT)):
                raise nothing_left(token_id) if said.startswith(MISFIT) else too_complex(said)
        self._taken.append(token_id)

    def _takes(self, token_id: int) -> bool:
        return token_id < self.vocab_size and bool(self._native.consume_token(token_id))

    def renewed(self) -> bool:
        """Where all that may be known of texts is used up: go on in a new matcher, from the tokens so far."""
        return self._native.is_error() and self._renewed(str(self._native.get_error()), (WORN,))

    def _renewed(self, said: str, reasons: tuple[str, ...]) -> bool:
        """Renew for one of these reasons, the second time at one place alone; a third is this row's own doing."""
        place, times = self._renewals if self._renewals[0] == len(self._taken) else (len(self._taken), 0)
        if self._renew is None or not said.startswith(reasons):
            return False
        while times < MOST_RENEWALS:
            times += 1
            self._renewals = place, times
            renewed = self._renew(times == MOST_RENEWALS)
            if renewed is None:
                return False
            self._native = renewed
            if not self._taken or self._native.consume_tokens(self._taken):
                return True
        return False

    def check(self, mask: npt.NDArray[np.bool_]) -> None:
        """Raise GrammarError where a mask [V] lets nothing through: from there nothing could be drawn."""
        if self._native.is_error():
            raise too_complex(str(self._native.get_error()))
        if not mask.any():
            raise GrammarError("the grammar allows no token of this model's vocabulary here")

    def close(self) -> None:
        """Free the native state; again does nothing."""
        global live
        if self._native is not None:
            self._native, self._renew, self.tally = None, None, None
            live -= 1
