"""What a row store is: how several rows go through a model together, each with state of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mlx.core as mx


class Fed(Protocol):
    """What a store needs to know of a row.

    Attributes:
        cache: its caches, one a layer; a store may hold their content elsewhere until `settle`.
        fed: tokens that were fed to them.
    """

    cache: list[Any]
    fed: int


F = TypeVar("F", bound=Fed)


class Store(Protocol):
    """How several rows go through the model together."""

    name: str

    def order(self, rows: Sequence[F]) -> list[F | None]:
        """The rows in the places that they take in the next step; None for an idle place."""
        ...

    def step(self, places: Sequence[Fed | None], tokens: mx.array) -> mx.array:
        """Feed one token [R, 1] to each place; logits [R, V]."""
        ...

    def prefill(self, rows: Sequence[Fed], tokens: mx.array, lengths: Sequence[int]) -> None:
        """Feed the first `lengths[r]` of each row's tokens [R, L]; nothing is evaluated."""
        ...

    def settle(self, row: Fed) -> None:
        """Make the row's own caches hold all that was fed to it."""
        ...

    def forget(self, row: Fed) -> None:
        """The row is gone, or starts over."""
        ...

    def warm(self, rows: int) -> int:
        """Run a step of so many rows for nobody, so that what the device builds for its shape is there.

        The rows up to which that serves; rows that are held are untouched.
        """
        ...

    def held_bytes(self) -> int:
        """Bytes that the store holds beside the rows' own caches."""
        ...

    def close(self) -> None:
        """No row is held and none will be: what others could use is free."""
        ...
