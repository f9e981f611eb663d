"""Gates over gates: which hold when each needs some of its inputs to hold; also where they stand in circles.

What can be finished is such a question: a rule of a grammar when one of its alternatives can, an alternative when all
of its parts can. Both answers are found in time linear in the gates' inputs, however long a chain or a circle is.
"""

from __future__ import annotations


class Gates:
    """Numbered gates. Each holds when at least `need` of its inputs hold; one that is never set never holds."""

    def __init__(self) -> None:
        self.inputs: list[list[int]] = []
        self._needs: list[int] = []
        self.visits = 0
        """How many inputs have been looked at so far; tests count."""

    def new(self) -> int:
        """A gate that is set later, so that others can name it before."""
        self.inputs.append([])
        self._needs.append(1)
        return len(self.inputs) - 1

    def set(self, gate: int, inputs: list[int], need: int) -> None:
        """Give a gate its inputs; one that stands there twice counts twice."""
        self.inputs[gate], self._needs[gate] = inputs, need

    def some(self, inputs: list[int], need: int = 1) -> int:
        """A new gate that needs some of its inputs: one of them, if not said otherwise."""
        gate = self.new()
        self.set(gate, inputs, need)
        return gate

    def all(self, inputs: list[int]) -> int:
        """A new gate that needs all of its inputs; without any it holds."""
        return self.some(inputs, len(inputs))

    def least(self) -> list[bool]:
        """Which hold for a reason that ends: a circle that only leads to itself does not hold."""
        return self._spread(list(self._needs))

    def greatest(self) -> list[bool]:
        """Which hold unless something speaks against it: a circle that only leads to itself does."""
        against = [len(inputs) - need + 1 for inputs, need in zip(self.inputs, self._needs, strict=True)]
        return [not fallen for fallen in self._spread(against)]

    def _spread(self, missing: list[int]) -> list[bool]:
        """What is reached when a gate is, as soon as as many of its inputs are reached as it misses."""
        users: list[list[int]] = [[] for _ in self.inputs]
        for gate, inputs in enumerate(self.inputs):
            for one in inputs:
                users[one].append(gate)
        reached = [count <= 0 for count in missing]
        waiting = [gate for gate, found in enumerate(reached) if found]
        while waiting:
            for user in users[waiting.pop()]:
                self.visits += 1
                missing[user] -= 1
                if missing[user] == 0:
                    reached[user] = True
                    waiting.append(user)
        return reached
