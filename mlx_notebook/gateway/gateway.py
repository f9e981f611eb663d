"""The gateway: a model behind an engine thread, as its users hold it.

A Gateway checks calls on the caller's thread, hands requests to its Engine, and answers questions
from plain values. It never touches MLX itself. Forgetting it closes it: the engine thread does
not know it, and rows that still run keep it alive until they are over.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from mlx_notebook.core.policy import BuiltIn
from mlx_notebook.engine.backend import release_all
from mlx_notebook.errors import MlxNotebookError
from mlx_notebook.gateway import loading, submission, waiting
from mlx_notebook.gateway.exclusive import DeviceBlock
from mlx_notebook.gateway.fan_out import FanOut
from mlx_notebook.gateway.handle import Handle
from mlx_notebook.gateway.handles import Handles
from mlx_notebook.gateway.history import EventBatch, events_since
from mlx_notebook.gateway.hooks import current_execution
from mlx_notebook.gateway.lease import device_lease
from mlx_notebook.gateway.observed import Observed
from mlx_notebook.gateway.planned import PlannedForGateways
from mlx_notebook.gateway.policies import UserPolicy
from mlx_notebook.gateway.record import RowRecord
from mlx_notebook.gateway.registry import epochs, registry, short_name
from mlx_notebook.gateway.settings import Settings, check_settings, check_settings_of_loaded
from mlx_notebook.gateway.stats import GatewayStats, PromptCacheStats
from mlx_notebook.gateway.thread import Engine
from mlx_notebook.gateway.tuning import serving_of, settings_for
from mlx_notebook.gateway.viewed import Viewed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from mlx_notebook.core.placement import Placement
    from mlx_notebook.core.results import Result
    from mlx_notebook.engine.backend import Backend

    Progress = Callable[[str, float | None], None]

JOIN_S = 60.0
"""How long `close` waits for an engine that is inside one long native call, before it leaves it to end by itself."""

REPORT_S = 0.1
"""How often a load's progress is told: on the caller's thread, which may print."""


class Gateway(FanOut, Observed, Viewed, PlannedForGateways):
    """A loaded model that answers requests.

    Args:
        model: `smollm2`, a folder in mlx-lm's form, a Hugging Face id, or a `.gguf` file.
        batch: rows that decode together, 1 to 1024; "auto" is 32, or what the model can do if that is less.
        kv: how keys and values are stored: "native", "8bit", "4bit", a dictionary (`bits`, `group_size`, `start`),
            a list of layers (`layer`, `bits`, `group_size`), or the path of a `kv_config.json` that holds such a list.
        kv_budget: bytes that rows may take, a number or "4GB"; "auto" is most of what the load leaves free.
        prompt_cache: bytes that the states of finished prompts may take, a number or "1GB"; 0 keeps none.
        deterministic: what a row says depends on nothing beside it, bit for bit; costs speed. Refused at load by a
            model that cannot hold it.
        policy: who enters first: "priority" (first come, first served among equals), "shortest", "static", or
            a function `(waiting, running) -> row ids, best first`.
        prefill_chunk: prompt tokens computed between two steps of the others; None sizes chunks by time.
        max_queued: rows that may wait before `submit` raises QueueFull.
        dtype: "float32", "float16", "bfloat16" or "4bit" (keep a file's quantised weights); None for
            this machine's best.
        revision: of a Hugging Face id.
        trust_remote_code: run the model folder's own code.
        name: what it is called here; the model's name if None. In use already, it gets a number.
        replace: take that name over instead: its gateway closes once this one is loaded, not before.
        progress: called while loading, on the caller's thread, with (what, fraction or None).

    Blocks till the model is loaded; an interrupt gives the load up. A cell that is run again closes
    the gateways that its earlier run made, once the settings and the model's files are found to be good (memory
    too, with theirs counted as free) and before the weights are read: two models at once may not fit.

    Raises:
        ModelNotFound, ModelLoadError, OverBudget: the model cannot be had; other gateways go on, also the cell's own
            unless only reading the weights or the tokenizer showed it.
        TypeError, ValueError, UnsupportedRequest: a setting is wrong; it is named.
    """

    def __init__(
        self,
        model: Any = "smollm2",
        *,
        batch: int | str = "auto",
        kv: Any = "native",
        kv_budget: int | str = "auto",
        prompt_cache: int | str = "1GB",
        deterministic: bool = False,
        policy: Any = "priority",
        prefill_chunk: int | None = None,
        max_queued: int = 10_000,
        dtype: str | None = None,
        revision: str | None = None,
        trust_remote_code: bool = False,
        name: str | None = None,
        replace: bool = False,
        progress: Progress | None = None,
        **others: Any,
    ) -> None:
        registry.refuse_after_fork()
        waiting.refuse_to_block("loading a model")
        settings = check_settings(
            batch=batch,
            kv=kv,
            kv_budget=kv_budget,
            prompt_cache=prompt_cache,
            deterministic=deterministic,
            policy=policy,
            prefill_chunk=prefill_chunk,
            max_queued=max_queued,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
            name=name,
            **others,
        )
        from mlx_notebook.models.backend_check import import_mlx
        from mlx_notebook.models.resolve import resolve as resolve_model

        import_mlx()
        resolved = resolve_model(model, revision=revision, progress=progress)
        named = loading.NamedModel(resolved, serving_of(settings), settings.dtype, settings.trust_remote_code)
        # A folder that cannot be loaded must not cost the gateway that the cell made before.
        named.check(registry.predecessors(current_execution()))
        self._start(named.load, settings, resolved.name, progress, takes_over=replace)

    @classmethod
    def from_loaded(cls, model: Any, tokenizer: Any, **settings: Any) -> Self:
        """A gateway for what `mlx_lm.load` returned; settings as for Gateway but those of a load (`dtype`, `revision`,
        `trust_remote_code`), which are refused.

        Every array that the model holds is evaluated on this thread first, since arrays may cross
        threads only evaluated. Afterwards touch the model only inside `with gateway.lease():`.
        """
        registry.refuse_after_fork()
        waiting.refuse_to_block("loading a model")
        checked = check_settings_of_loaded(settings)
        loader = loading.loader_of_loaded(model, tokenizer, serving_of(checked))
        gateway = cls.__new__(cls)
        gateway._start(loader, checked, "loaded", None)  # noqa: SLF001 - another way to construct the same class
        return gateway

    @classmethod
    def from_backend(cls, backend: Backend, *, facts: loading.ModelFacts | None = None, **settings: Any) -> Self:
        """A gateway over any backend, such as a ScriptedBackend: for tests, teaching and demonstrations."""
        waiting.refuse_to_block("loading a model")
        checked = check_settings_of_loaded(settings)
        gateway = cls.__new__(cls)
        gateway._start(  # noqa: SLF001 - another way to construct the same class
            loading.loader_of_backend(backend, facts or loading.ModelFacts()), checked, "scripted", None
        )
        return gateway

    def _start(
        self,
        loader: loading.Loader,
        settings: Settings,
        model_name: str,
        progress: Progress | None,
        *,
        takes_over: bool = False,
    ) -> None:
        registry.close_predecessors(current_execution())
        wanted = settings.name or short_name(model_name)
        self.name = wanted if takes_over else registry.free_name(wanted)
        self.model_name = model_name
        self.execution = current_execution()
        self._settings = settings
        self._loader = loader
        self._lifecycle = threading.RLock()
        self._launch(progress)
        before = registry.gateways().get(self.name)
        registry.add(self)
        if before is not None:
            before.close()

    def _launch(self, progress: Progress | None) -> None:
        reports: deque[tuple[str, float | None]] = deque(maxlen=1)  # only the latest is news
        engine = Engine(
            self.name,
            self._loader,
            max_queued=self._settings.max_queued,
            settings_for=settings_for(self._settings),
            policy=None if isinstance(self._settings.policy, BuiltIn) else UserPolicy(self._settings.policy),
            progress=lambda what, fraction: reports.append((what, fraction)),
        )

        def loaded(seconds: float) -> bool:
            ready = engine.ready.wait(min(seconds, REPORT_S))
            while progress is not None and reports:
                progress(*reports.popleft())
            return ready

        try:
            engine.start()
            waiting.sleep_until(loaded, None)
            self._adopt(engine)
        except BaseException:  # nobody else would ever stop it
            engine.stop()
            engine.join(JOIN_S)
            raise

    def _adopt(self, engine: Engine) -> None:
        if engine.load_error is not None:
            raise engine.load_error
        if engine.loop is None:
            raise RuntimeError("a loaded engine has a loop")
        self._engine, self._loop = engine, engine.loop
        self._facts: loading.ModelFacts = engine.loaded
        self._capabilities = engine.capabilities
        self._epoch = next(epochs)
        self._finalizer = weakref.finalize(self, engine.stop)
        self._finalizer.atexit = False  # the registry stops and joins at exit

    # ------------------------------------------------------------ asking

    def submit(
        self,
        prompt: Any,
        /,
        *,
        on_token: Callable[..., Any] | None = None,
        placement: Placement | None = None,
        **options: Any,
    ) -> Any:
        """Queue a request and return its Handle at once; `n > 1` or a list of prompts gives Handles.

        With a shape it returns when that is compiled, after 5 seconds at the latest; a model's first shape also waits
        for its vocabulary to be read.

        Args:
            prompt: text (put into the chat template where there is one, unless `raw=True`), a list of
                messages (`role`, `content`), or a list of token ids; or a list of such prompts.
            on_token: `on_token(token_id, text, logprobs)` between steps, on the engine thread; False ends the row.
            placement: what `place` returned for this very request, if the caller looked first.
            options: see `mlx_notebook.core.options`; times in seconds, counts in tokens.

        Raises:
            TypeError, ValueError, UnsupportedRequest: an option or the prompt is wrong; it is named.
            GrammarError: the answer cannot be held to this schema, pattern, choices or grammar; the place is named.
            OverContext, OverBudget, QueueFull: it cannot be taken; the numbers are named.
            GatewayClosed, GatewayDead, PlacementMismatch.
        """
        engine = self._engine
        engine.check()
        call = submission.check_call(
            prompt,
            options,
            facts=self._facts,
            capabilities=self._capabilities,
            kv_budget=self._loop.scheduler.memory.budget,
            prompt_cache=self._loop.scheduler.memory.prefixes.ceiling,
            on_token=on_token,
        )
        records = [
            RowRecord(r, self._resolve(r), current_execution(), self, self._facts.thinking) for r in call.requests
        ]
        handles = Handles(Handle(*one, self.model_name) for one in zip(records, repeat(engine), call.options))
        try:
            submission.refuse_mismatch(placement, records)
            for request, record, handle in zip(call.requests, records, handles, strict=True):
                engine.submit(request, record)
                registry.keep(handle)  # after: a refused request is nobody's latest, and would never be over
        except BaseException:
            for request, record in zip(call.requests, records, strict=True):
                if record.taken:
                    engine.cancel(record.id)
                else:
                    release_all(request)
            raise
        return handles if call.several else handles[0]

    @overload
    def generate(self, prompt: str, /, *, n: Literal[1] = 1, **options: Any) -> Result: ...

    @overload
    def generate(self, prompt: Any, /, **options: Any) -> Any: ...

    def generate(self, prompt: Any, /, **options: Any) -> Any:
        """Submit and wait: a Result, or a list of them where `submit` gives Handles."""
        waiting.refuse_to_block("generate()")
        self._engine.pausing.refuse_to_wait("generate()")  # before a request is queued that nobody would have
        asked = self.submit(prompt, **options)
        return asked.results() if isinstance(asked, Handles) else asked.result()

    def place(self, prompt: Any, /, **options: Any) -> Placement:
        """Where this request would go and what it would get there, with every reason why not more. Pure."""
        self._engine.check()
        on_token = options.pop("on_token", None)
        call = submission.check_call(
            prompt,
            options,
            facts=self._facts,
            capabilities=self._capabilities,
            kv_budget=self._loop.scheduler.memory.budget,
            prompt_cache=self._loop.scheduler.memory.prefixes.ceiling,
            on_token=on_token,
        )
        return self._resolve(call.requests[0])

    # ------------------------------------------------------------ the model

    @property
    def context_length(self) -> int | None:
        """Tokens that prompt and answer may take together; None where the model names no limit."""
        return self._capabilities.context_length

    @property
    def source(self) -> str:
        """Where the weights came from."""
        return self._facts.source

    @property
    def revision(self) -> str | None:
        """Commit or checksum of the weights, where there is one."""
        return self._facts.revision

    @property
    def weight_bytes(self) -> int:
        """Bytes of the loaded weights."""
        return self._facts.weight_bytes

    @property
    def freed_by_close(self) -> int:
        """Bytes that closing frees: rows, kept prefixes, and weights unless the caller loaded them (`from_loaded`)."""
        return self._loop.held_bytes + (0 if self._facts.borrowed else self._facts.weight_bytes)

    @property
    def recommended_sampling(self) -> Mapping[str, Any]:
        """The model's own sampling values, used with `sampling="model"`."""
        return dict(self._facts.recommended_sampling)

    @property
    def model(self) -> Any:
        """The mlx-lm model; only inside `with gateway.lease():` or `run_exclusive`.

        Raises:
            MlxNotebookError: the device is not this thread's now, or the gateway is closed.
        """
        self._engine.check()
        me = threading.get_ident()
        if me not in waiting.engine_threads and not device_lease().held_by_thread(me):
            raise MlxNotebookError(
                "MLX belongs to the engine thread:"
                " touch gateway.model inside `with gateway.lease():` or run_exclusive()."
            )
        return self._facts.model

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer (mlx-lm's wrapper); None for a scripted backend."""
        return self._facts.tokenizer

    # ------------------------------------------------------------ exclusive use

    def lease(self, timeout: float | None = None) -> DeviceBlock[Self]:
        """Exclusive use of the device on this thread, as a `with` block; rows asked for before it are finished first.

        Rows submitted meanwhile wait. Blocking calls of ours inside raise WouldDeadlock. `break_lease()`
        from another thread takes it away.

        Raises:
            TimeoutError: the device was not free within `timeout` seconds; the place in the line is given up.
        """
        self._engine.check()
        return DeviceBlock(self, self.name, timeout)

    def run_exclusive(self, function: Callable[[], Any]) -> Any:
        """Run `function()` on the engine thread with the device to itself, and return its value.

        What it returns must be plain Python, NumPy or evaluated arrays. Its exception is raised here.
        An interrupt while it waits gives its place up.
        """
        if not callable(function):
            raise TypeError(f"run_exclusive takes a function without arguments, not {type(function).__name__}")
        waiting.refuse_to_block("run_exclusive()")
        return self._engine.run_exclusive(function)

    def break_lease(self) -> bool:
        """Take the device from a `lease()` or `run_exclusive` that holds it; False where nobody breakable does.

        Running rows and loads cannot be broken: cancel them.
        """
        return device_lease().break_holder() is not None

    # ------------------------------------------------------------ state

    @property
    def busy(self) -> bool:
        """Whether any request is not over, from the moment of enqueue."""
        return self._engine.busy

    @property
    def closed(self) -> bool:
        """Whether the gateway takes no more work (closed or dead); `restart()` makes it take some again."""
        return not self._engine.alive

    def wait_idle(self, timeout: float | None = None) -> bool:
        """Wait until no request is open; False if `timeout` seconds passed first."""
        if not self.busy:
            return True
        self._engine.pausing.refuse_to_wait("wait_idle()")
        waiting.refuse_to_block("wait_idle()")
        return waiting.sleep_until(self._engine.intake.idle.wait, timeout)

    def stats(self) -> GatewayStats:
        """Figures of this moment; never waits."""
        engine, loop, lease = self._engine, self._loop, device_lease()
        scheduler, holder = loop.scheduler, lease.holder
        now = time.monotonic_ns()
        return GatewayStats(
            active_rows=scheduler.decoding,
            prefill_rows=scheduler.prefilling,
            queued_rows=engine.intake.queued,
            submitted=engine.intake.submitted,
            finished=scheduler.counters.finished,
            cancelled=scheduler.counters.cancelled,
            failed=scheduler.counters.failed,
            lease_waiting=lease.waiting,
            lease_holder=None if holder is None else f"{holder.owner} ({holder.kind}) for {holder.age_s:.1f} s",
            kv_bytes=loop.held_bytes,
            kv_projected_bytes=scheduler.memory.projected,
            kv_budget_bytes=scheduler.memory.budget,
            weight_bytes=self._facts.weight_bytes,
            prompt_cache=PromptCacheStats.of(scheduler.memory.prefixes),
            steps=scheduler.counters.steps,
            tokens_per_s=loop.meter.rate(now),
            device=self._facts.device,
            dtype=self._facts.dtype,
            store=self._facts.store,
            store_findings=self._facts.store_findings,
            model=self.model_name,
            mode="continuous" if self._capabilities.continuous else "serial",
            silent_s=(now - loop.last_seen_ns) / 1e9,
        )

    def events(self, after: int = 0) -> EventBatch:
        """What happened since record number `after`, as NumPy columns of the bounded log; never waits."""
        return events_since(self._loop.ring, after)

    @property
    def handles(self) -> Handles:
        """Handles of this gateway that are not over, oldest first."""
        return Handles(h for h in registry.live_handles() if h.belongs_to(self._engine))

    def close(self) -> None:
        """Reject the waiting, cancel the running, settle every handle at once, end the thread. Idempotent.

        On the engine thread (from a callback) it only asks for the end.
        """
        self._engine.stop()
        self._finalizer.detach()
        registry.remove(self)
        self._facts = replace(self._facts, model=None)
        if threading.get_ident() not in waiting.engine_threads:
            self._engine.join(JOIN_S)

    def restart(self) -> None:
        """Load the model again on a new engine thread, after a death or a close; placements made before are void.

        Raises:
            GatewayDead: this is a forked child.
        """
        waiting.refuse_to_block("restart()")
        self._engine.check_process()
        with self._lifecycle:
            self.close()
            self._launch(None)
            registry.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "busy" if self.busy else "idle"
        return f"<Gateway {self.name!r}: {self.model_name}, {state}>"
