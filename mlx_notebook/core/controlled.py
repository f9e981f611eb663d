"""What a person asks of a scheduler while it runs: pause, step, pace, priorities, longer answers. All is logged."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from mlx_notebook.core import events as ev
from mlx_notebook.core.request import with_limit
from mlx_notebook.core.ring import Control, Kind

if TYPE_CHECKING:
    from mlx_notebook.core.control import Reins
    from mlx_notebook.core.line import WaitingLine
    from mlx_notebook.core.memory import Memory
    from mlx_notebook.core.ring import Ring
    from mlx_notebook.core.rows import Row
    from mlx_notebook.core.scheduler_settings import Counters, SchedulerSettings


class Controlled:
    """Inherited by Scheduler."""

    settings: SchedulerSettings
    rows: dict[int, Row]
    counters: Counters
    line: WaitingLine
    memory: Memory
    ring: Ring
    reins: Reins

    def pause_asked(self, event: ev.PauseAsked) -> list[ev.Instruction]:
        """Compute nothing more until told."""
        self.reins.pause()
        return self.record_control(event.at_ns, Control.PAUSE)

    def resume_asked(self, event: ev.ResumeAsked) -> list[ev.Instruction]:
        """Go on."""
        self.reins.resume()
        return self.record_control(event.at_ns, Control.RESUME)

    def step_asked(self, event: ev.StepAsked) -> list[ev.Instruction]:
        """Pause after so many turns more."""
        self.reins.allow(event.steps)
        return self.record_control(event.at_ns, Control.STEP, event.steps)

    def pace_asked(self, event: ev.PaceAsked) -> list[ev.Instruction]:
        """Slow motion."""
        self.reins.delay_ns = event.delay_ns
        return self.record_control(event.at_ns, Control.PACE, event.delay_ns)

    def priority_asked(self, event: ev.PriorityAsked) -> list[ev.Instruction]:
        """Another priority for a live row."""
        row = self.rows.get(event.row_id)
        if row is None:
            return []
        row.request = replace(row.request, priority=event.priority)
        self.line.moved(row)
        return self.record_control(event.at_ns, Control.PRIORITY, event.priority, row.id)

    def extend_asked(self, event: ev.ExtendAsked) -> list[ev.Instruction]:
        """A longer answer for a live row, if context and budget allow it."""
        row = self.rows.get(event.row_id)
        if row is None:
            return [ev.Extended(event.row_id, 0, "over")]
        before, context = row.request, self.settings.context_length
        held = before.shape.sampling.max_tokens
        tokens = row.prompt_tokens + held + event.tokens
        if context is not None and tokens > context:
            return [ev.Extended(row.id, held, "context", tokens, context)]
        need = self.settings.cost.of(tokens)
        over = self.memory.over_by(row, need)
        if over > 0:
            return [ev.Extended(row.id, held, "budget", self.memory.budget + over, self.memory.budget)]
        row.request = with_limit(before, held + event.tokens)
        self.line.moved(row)
        self.record_control(event.at_ns, Control.LIMIT, held + event.tokens, row.id)
        return [ev.Extended(row.id, held + event.tokens), *(ev.Evict(one) for one in self.memory.extend(row))]

    def policy_failed(self, event: ev.PolicyFailed) -> list[ev.Instruction]:
        """The user's policy failed: the log says so."""
        self.ring.record(event.at_ns, Kind.POLICY, step=self.counters.steps)
        return []

    def record_control(self, at_ns: int, what: Control, value: int = 0, row_id: int = 0) -> list[ev.Instruction]:
        """Write down what somebody did; it asks for nothing by itself."""
        self.ring.record(at_ns, Kind.CONTROL, row_id, self.counters.steps, what, value)
        return []
