"""How much of which prompts to compute between two decode steps.

Chunks are sized by time: what they cost is learned from those that were run. While rows write, a chunk may
take the target and as long as one of their steps, so that none waits for its next token longer than the target
and two steps, and a machine that is slow at everything does not cut prompts into crumbs. Short
prompts go together, padded to one rectangle, within the same budget; of long ones one at a time
gets a chunk, in turn. With a fixed chunk (deterministic mode, or the user's choice) prompts go
alone, cut at absolute positions. A chunk also ends where a state is to be kept for other prompts; in
deterministic mode it does not: where a prompt is cut changes its bits, so nothing but the position may decide it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlx_notebook.core.chunk_costs import WEIGHT, ChunkCosts
from mlx_notebook.core.events import PrefillPart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mlx_notebook.core.rows import Row

TARGET_NS = 50_000_000
"""How long running rows may wait for one chunk, beside the time of a step."""

AIM = 0.85
"""Share of what a row may wait that is planned for: chunks of one size, and steps, differ by about the rest."""

ALONE_FACTOR = 8
"""While nobody writes nobody waits, but cancels are looked at between chunks: so not without limit."""

FIRST_GUESS_NS = 400_000
"""A token's cost before anything was measured: small enough a first chunk to be harmless."""

MOST_OF_A_STEP_NS = 250_000_000
"""A step counts for no more: one that a user's function slows down is no reason for long chunks."""


class ChunkPlanner:
    """Plans prefill, and learns what it costs.

    Args:
        fixed: tokens a chunk, cut at multiples of it; None to size by time.
        together: whether short prompts may share a forward.
        boundaries: whether chunks end at the requests' boundaries too.
        token_ns: what a token is taken to cost before anything was measured.
    """

    def __init__(
        self,
        fixed: int | None = None,
        *,
        together: bool = True,
        boundaries: bool = True,
        token_ns: float = FIRST_GUESS_NS,
    ) -> None:
        self.fixed = fixed
        self.together = together
        self.boundaries = boundaries
        self._costs = ChunkCosts(token_ns)
        self._step_ns = 0.0
        self._step_after_ns = 0.0
        self._after_a_chunk = False

    def learn(self, padded_tokens: int, spent_ns: int, columns: int = 0) -> None:
        """A forward over this many prompt tokens (padding counted), after so many columns a row, took so long."""
        self._costs.learn(padded_tokens, spent_ns, columns)

    def learn_forward(self, parts: Sequence[PrefillPart], spent_ns: int) -> None:
        """The forward over these parts took so long. Where nothing had to be computed there is nothing to learn."""
        computed = [part for part in parts if part.computed > 0]
        if computed:
            self._after_a_chunk = True
            columns = sum(part.start for part in computed) // len(computed)
            self.learn(max(part.computed for part in computed) * len(computed), spent_ns, columns)

    def learn_step(self, spent_ns: int) -> None:
        """A decode step took so long. Those after a chunk take longer than others: what they read was displaced."""
        spent = min(spent_ns, MOST_OF_A_STEP_NS)
        if self._after_a_chunk:
            self._step_after_ns += WEIGHT * (spent - self._step_after_ns) if self._step_after_ns else spent
            self._after_a_chunk = False
        else:
            self._step_ns += WEIGHT * (spent - self._step_ns)

    def budget(self, *, rows_wait: bool, columns: int = 0) -> int:
        """Tokens of one forward now, after so many columns; `rows_wait` says whether any row is writing."""
        if self.fixed is not None:
            return self.fixed
        target = self._beside_others() if rows_wait else TARGET_NS * ALONE_FACTOR
        return self._costs.largest_within(target, columns)

    def _beside_others(self) -> float:
        """A row may wait the target and two steps as they are without chunks; the step after one is part of it."""
        after = self._step_after_ns or self._step_ns
        return max(AIM * (TARGET_NS + 2 * (self._step_ns or after)) - after, AIM * TARGET_NS / 2)

    def plan(self, rows: Sequence[Row], *, rows_wait: bool) -> tuple[PrefillPart, ...]:
        """The next forward for these rows (in turn order); empty if there are none."""
        if not rows:
            return ()
        budget = self.budget(rows_wait=rows_wait, columns=rows[0].prefilled)
        first = self._part(rows[0], budget)
        if self.fixed is not None or not self.together or not first.last:
            return (first,)
        parts, longest = [first], first.stop - first.start
        for row in rows[1:]:
            known = row.known_tokens - row.prefilled
            widest = max(longest, known)
            if widest * (len(parts) + 1) > budget or self._splits(row, budget):
                continue
            parts.append(PrefillPart(row.id, row.prefilled, row.known_tokens, last=True))
            longest = widest
        return tuple(parts)

    def _part(self, row: Row, budget: int) -> PrefillPart:
        known = row.known_tokens
        stop = row.prefilled + budget
        if self.fixed is not None:
            stop = (row.prefilled // self.fixed + 1) * self.fixed
        if self.boundaries:
            stop = min((stop, *(b for b in (*row.request.boundaries, *row.stops) if row.prefilled < b < known)))
        # The last token is fed alone, with the decode step: a chunk that would leave only it takes it along.
        if stop >= known - 1:
            stop = known
        return PrefillPart(row.id, row.prefilled, stop, last=stop == known)

    def _splits(self, row: Row, budget: int) -> bool:
        return not self._part(row, budget).last
