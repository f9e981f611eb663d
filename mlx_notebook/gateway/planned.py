"""What the public interface has names for and this version does not serve: each is refused by its name.

These are methods, so that a call says what is missing instead of AttributeError; completion leaves them out.
Options are refused in `core.options`, settings in `gateway.settings`, by the same sentence.
"""

from __future__ import annotations

from typing import Any, NoReturn

from mlx_notebook.core.options import not_served


class _Unlisted:
    """Leaves a class's planned methods out of `dir()`."""

    _planned: frozenset[str] = frozenset()

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in self._planned]


class PlannedForGateways(_Unlisted):
    """Inherited by Gateway."""

    _planned = frozenset({"mount", "unmount", "score", "replay"})

    def mount(self, *_given: Any, **_named: Any) -> NoReturn:
        """Comes with adapters, in a later version; raises UnsupportedRequest."""
        raise not_served("mount()", "mount", "adapters")

    def unmount(self, *_given: Any, **_named: Any) -> NoReturn:
        """Comes with adapters, in a later version; raises UnsupportedRequest."""
        raise not_served("unmount()", "unmount", "adapters")

    def score(self, *_given: Any, **_named: Any) -> NoReturn:
        """Scores of given continuations: comes with a later version; raises UnsupportedRequest."""
        raise not_served("score()", "score", "scores of given continuations")

    def replay(self, *_given: Any, **_named: Any) -> NoReturn:
        """Replays of a recorded run under other limits: comes with a later version; raises UnsupportedRequest."""
        raise not_served("replay()", "replay", "replays of a recorded run")


class PlannedForHandles(_Unlisted):
    """Inherited by Handle."""

    _planned = frozenset({"branch"})

    def branch(self, *_given: Any, **_named: Any) -> NoReturn:
        """Another answer from a token of this one on: comes with a later version; raises UnsupportedRequest."""
        raise not_served("branch()", "branch", "branches of an answer")
