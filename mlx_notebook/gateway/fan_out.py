"""The part of a gateway that answers many prompts as one frame, and what can be asked before anything is queued."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlx_notebook.core.options import ParsedOptions, parse_options
from mlx_notebook.gateway import submission
from mlx_notebook.gateway.estimate import Estimate, estimate_prompts
from mlx_notebook.gateway.later import Later
from mlx_notebook.gateway.shapes import compiled_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pandas import DataFrame

    from mlx_notebook.core.placement import Capabilities
    from mlx_notebook.gateway.loading import ModelFacts
    from mlx_notebook.gateway.loop import EngineLoop
    from mlx_notebook.gateway.thread import Engine


class FanOut(Later):
    """Inherited by Gateway.

    Attributes:
        last_map: the frame of the last `map` or `compare`, a partial one after an interrupt; None before the first.
    """

    name: str
    model_name: str
    last_map: DataFrame | None = None
    _engine: Engine
    _facts: ModelFacts
    _capabilities: Capabilities
    _loop: EngineLoop

    def map(
        self,
        data: Any,
        prompt: str | None = None,
        *,
        system: Any = None,
        errors: str = "keep",
        save: Any = None,
        resume: Any = None,
        retry: str | None = None,
        progress: bool = True,
        n: int = 1,
        expand: bool = False,
        **options: Any,
    ) -> DataFrame:
        """Answer many prompts and return a frame: one row a prompt, in order, under the data's own index.

        Args:
            data: a list of prompts, a Series, or a DataFrame with a template.
            prompt: a template over the DataFrame's columns, `"Summarise: {review}"`; a brace that is meant as text is
                doubled. For a list or a Series its field is `{}`.
            system: as for `submit`.
            errors: "keep": a row that fails is a row with `error`; "raise": the first one raises RowsFailed.
            save: a file (JSON Lines) that each finished row is appended to.
            resume: go on with an earlier run: its frame, its file, or True for `save`'s file or else `last_map`.
                What is finished is not run again. A call that asks for something else is refused, with what differs.
            retry: "failed" runs again what failed in the run that is resumed (`last_map` if none is named).
            progress: show a live line where there is a place for one.
            n: answers a prompt; with more than one there is a column `sample`.
            expand: with `json_schema`, a column of its own for each property of the object, with its type (`Int64`,
                `float64`, `boolean`, `string`, categories for an enum of texts, else objects); one whose name is
                a column's already is called `parsed.NAME`.
            options: as for `submit`. Only a Series means one value a row. `priority=-1` lets other cells go first.

        Returns:
            Columns `text, finish_reason, finish_detail, prompt_tokens, cached_tokens, generated_tokens, queue_ms,
            ttft_ms, tpot_ms` (milliseconds), `seed, error`. Answers with a shape have `parsed` (plain values, also for
            a pydantic class) and `parse_error`; `choices` make a categorical `choice` instead of `parsed`, with
            `logprobs` also `p_CHOICE` for each, the model's probability (`Result.probabilities`). Rows that cannot be
            run (missing, empty, too long) are printed before the first token; a line at the end counts the outcomes.
            Each row's seed comes from (seed, row, sample) by `mlx_notebook.core.seeds.row_seed`, so that `submit` with
            that seed draws the same answer alone.

        Raises:
            TypeError, ValueError, UnsupportedRequest: the call is wrong; it is named.
            RowsFailed: with errors="raise"; it carries `frame`.
            KeyboardInterrupt: what is left is cancelled; it carries `frame`, which is `last_map` too.
        """
        from mlx_notebook.gateway.frames.mapping import map_rows

        call = {"system": system, "errors": errors, "save": save, "resume": resume, "retry": retry}
        return map_rows(self, data, prompt, **call, progress=progress, n=n, expand=expand, options=options)

    def compare(
        self,
        prompts: Any,
        settings: Mapping[str, Any],
        *,
        prompt: str | None = None,
        system: Any = None,
        errors: str = "keep",
        progress: bool = True,
        n: int = 1,
        **options: Any,
    ) -> DataFrame:
        """Answer each prompt under each setting, all in one batch; a long frame with a column `setting`.

        Args:
            prompts: as `map`'s data; `prompt` as there.
            settings: a name for each dictionary of options; a gateway as a value answers by another model.
            options: hold for all settings; a setting's own options win.

        Returns:
            `setting` and `prompt`, then the columns of `map`; for each row its settings one after the other. The same
            row and sample has the same seed under every setting, so that only the setting differs.

        Raises:
            As `map`.
        """
        from mlx_notebook.gateway.frames.comparing import compare_rows

        call = {"prompt": prompt, "system": system, "errors": errors, "progress": progress}
        return compare_rows(self, prompts, settings, **call, n=n, options=options)

    @property
    def max_rows(self) -> int:
        """How many rows may run at once."""
        return self._loop.scheduler.settings.max_rows

    def check(self, prompt: Any, /, **options: Any) -> int:
        """Raise what `submit` would raise of this one request, and return its prompt's tokens. Nothing is queued."""
        self._engine.check()
        return submission.check_prompt(
            prompt,
            self.check_options(**options),
            facts=self._facts,
            capabilities=self._capabilities,
            kv_budget=self._loop.scheduler.memory.budget,
        )

    def check_options(self, **options: Any) -> ParsedOptions:
        """Raise what `submit` would raise of these options, and return what would hold (seed 0 if none is given)."""
        parsed = parse_options(
            options,
            vocab_size=self._capabilities.vocab_size,
            draw_seed=lambda: 0,
            recommended=self._facts.recommended_sampling,
        )
        compiled_for(parsed.grammar, self._facts)
        return parsed

    def count_tokens(self, x: Any, /, **options: Any) -> int:
        """Tokens of a prompt as `submit` would send it: text through the chat template, messages, or ids."""
        self._engine.check_process()
        parsed = parse_options(options, vocab_size=self._capabilities.vocab_size, draw_seed=lambda: 0)
        return len(submission.encode(x, parsed, self._facts, self._capabilities)[0])

    def estimate(self, prompts: Any, max_tokens: int = 256, **options: Any) -> Estimate:
        """Tokens and KV memory that prompts would take, and which would not fit. Nothing is queued."""
        self._engine.check_process()
        return estimate_prompts(
            prompts,
            max_tokens,
            options,
            facts=self._facts,
            capabilities=self._capabilities,
            kv_budget=self._loop.scheduler.memory.budget,
        )
