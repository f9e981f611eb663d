"""How an engine thread gets its backend: from a name, from a loaded model, or ready made.

Each function returns a loader, which the engine thread calls under the device lease (and again at
a restart). MLX is imported here only when such a loader is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mlx_notebook.core.thinking import ThinkingMarks
from mlx_notebook.errors import about_model
from mlx_notebook.gateway.encoding import CodePointEncoder, ModelEncoder, PromptEncoder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mlx_notebook.core.kv_scheme import KVScheme
    from mlx_notebook.engine.backend import Backend
    from mlx_notebook.engine.vocabulary import Vocabulary
    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.gateway.thread import Loading
    from mlx_notebook.models.describe import LoadedModel
    from mlx_notebook.models.resolve import ResolvedModel

    Loader = Callable[[Loading], tuple[Backend, "ModelFacts"]]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a gateway knows of its model, as plain values; `model` and `tokenizer` are None for a scripted backend.

    `borrowed`: the weights are the caller's, who may hold them for longer than the gateway does.
    """

    source: str = "scripted"
    revision: str | None = None
    weight_bytes: int = 0
    borrowed: bool = False
    eos_ids: frozenset[int] = frozenset()
    recommended_sampling: Mapping[str, Any] = field(default_factory=dict)
    device: str = "none"
    dtype: str = "none"
    store: str = "scripted"
    store_findings: tuple[str, ...] = ()
    free_bytes: int = 0
    encoder: PromptEncoder = field(default_factory=CodePointEncoder)
    model: Any = None
    tokenizer: Any = None
    thinking: ThinkingMarks | None = None
    vocabulary: Vocabulary | None = None


@dataclass(slots=True)
class Serving:
    """How a loaded model is to be served: how keys and values are stored, rows at once, the deterministic mode.

    `tried` says whether the model's shapes were found to fit `kv`.
    """

    kv: KVScheme
    max_rows: int
    deterministic: bool
    tried: bool = False

    def check_shapes(self, model: Any) -> None:
        """Raise ModelLoadError where the model's shapes do not fit `kv`; its weights may be lazy. Tried once."""
        if self.tried or self.kv.native:
            return
        from mlx_notebook.engine.kv.convert import check_model

        check_model(model, self.kv)
        self.tried = True


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model that a name stands for, and how it is to be read and served."""

    resolved: ResolvedModel
    serving: Serving
    dtype: str | None
    trust_remote_code: bool

    def check(self, leaving: Sequence[Gateway]) -> None:
        """Raise what the load would, as far as files and settings show it, before it takes the place of `leaving`.

        What closing them frees counts as free. Where nobody leaves there is nothing to save, and the load itself says
        what is wrong.
        """
        if not leaving:
            return
        from mlx_notebook.models.load import check_loadable

        check_loadable(
            self.resolved,
            dtype=self.dtype,
            trust_remote_code=self.trust_remote_code,
            held_by_others=sum(gateway.freed_by_close for gateway in leaving),
            check_model=None if self.serving.kv.native else self.serving.check_shapes,
        )

    def load(self, loading: Loading) -> tuple[Backend, ModelFacts]:
        """Load it, on the engine thread."""
        from mlx_notebook.models.load import load

        loaded = load(
            self.resolved,
            dtype=self.dtype,
            trust_remote_code=self.trust_remote_code,
            progress=loading.progress,
            check_cancel=loading.check,
            check_model=self.serving.check_shapes,
        )
        return _serve(loaded, self.serving)


def loader_of_loaded(model: Any, tokenizer: Any, serving: Serving) -> Loader:
    """Serves what `mlx_lm.load` returned. Called on the caller's thread: every array is evaluated there, now."""
    from mlx_notebook.models.backend_check import import_mlx
    from mlx_notebook.models.describe import describe_loaded
    from mlx_notebook.models.evaluate import evaluate_everything
    from mlx_notebook.models.own_thread import on_own_thread

    import_mlx()
    evaluate_everything(model)
    loaded = describe_loaded(model, tokenizer)
    if not serving.kv.native:
        with about_model(loaded.name):
            on_own_thread(lambda: serving.check_shapes(model))
    return lambda _loading: _serve(loaded, serving, borrowed=True)


def loader_of_backend(backend: Backend, facts: ModelFacts) -> Loader:
    """Serves a ready backend (scripted ones)."""
    return lambda _loading: (backend, facts)


def _marks_of(tokenizer: Any) -> ThinkingMarks | None:
    """The thinking marks that mlx-lm's wrapper found in the vocabulary; None for other tokenizers and models."""
    start, end = getattr(tokenizer, "think_start", None), getattr(tokenizer, "think_end", None)
    if not (isinstance(start, str) and isinstance(end, str)):
        return None
    ids = (tokenizer.think_start_tokens, tokenizer.think_end_tokens)
    return ThinkingMarks(start, end, *(tuple(int(i) for i in one) for one in ids))


def _serve(loaded: LoadedModel, serving: Serving, *, borrowed: bool = False) -> tuple[Backend, ModelFacts]:
    from mlx_notebook.engine.mlx_backend import MlxBackend, device_name
    from mlx_notebook.engine.vocabulary import Vocabulary
    from mlx_notebook.models.memory import free_memory
    from mlx_notebook.models.tokenization import Tokenization

    tokenization = Tokenization(loaded.tokenizer, vocab_size=loaded.vocab_size)
    with about_model(loaded.name):
        backend = MlxBackend(
            loaded.model,
            loaded.tokenizer,
            vocab_size=loaded.vocab_size,
            context_length=loaded.context_length,
            eos_token_ids=loaded.eos_token_ids,
            tokenizer_lock=tokenization.lock,
            kv_scheme=serving.kv,
            max_rows=serving.max_rows,
            deterministic=serving.deterministic,
        )
    facts = ModelFacts(
        source=loaded.source,
        revision=loaded.revision,
        weight_bytes=loaded.weight_bytes,
        borrowed=borrowed,
        eos_ids=frozenset(loaded.eos_token_ids),
        recommended_sampling=dict(loaded.recommended_sampling),
        device=device_name(),
        dtype=loaded.dtype,
        store=backend.store,
        store_findings=backend.store_findings,
        free_bytes=free_memory(),
        encoder=ModelEncoder(tokenization),
        model=loaded.model,
        tokenizer=loaded.tokenizer,
        thinking=_marks_of(loaded.tokenizer),
        vocabulary=Vocabulary(loaded.tokenizer, loaded.eos_token_ids, tokenization.lock),
    )
    return backend, facts
