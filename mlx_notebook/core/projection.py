"""Bytes that a row will take at most, from coefficients that the model's caches give.

The projection is the worst case (prompt and answer limit), capped by windows and by the context,
with columns counted in blocks as the stores allocate them. It is what admission reckons with:
MLX cannot always raise on a failed allocation, so nothing may be allocated on hope.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 64
"""Columns that a store allocates at a time."""


@dataclass(frozen=True, slots=True)
class CacheCost:
    """What one row's caches take.

    Attributes:
        bytes_per_token: of all layers that keep every token.
        windows: (window, bytes a token) of layers that keep only the last `window` tokens.
        state_bytes: constant, of recurrent and convolution layers.
        start: tokens from which a row is stored like this, where a quantised scheme starts late.
        unconverted: what it takes before.
    """

    bytes_per_token: int = 0
    windows: tuple[tuple[int, int], ...] = ()
    state_bytes: int = 0
    start: int = 0
    unconverted: CacheCost | None = None

    def of(self, tokens: int) -> int:
        """Bytes that a row takes at most on its way to this many tokens."""
        if self.unconverted is None or self.start <= 1:
            return self._stored(tokens)
        return max(self._stored(tokens), self.unconverted.of(min(tokens, self.start - 1)))

    def _stored(self, tokens: int) -> int:
        columns = -(-tokens // BLOCK) * BLOCK
        windowed = sum(min(columns, window) * per_token for window, per_token in self.windows)
        return columns * self.bytes_per_token + windowed + self.state_bytes
