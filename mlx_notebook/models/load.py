"""From a resolved folder to a model in memory, on the thread that will own it.

Everything that can be known from the files is checked before a weight is read, memory first of
all. Weights are evaluated in groups, so that an interrupt works and no single evaluation grows
with the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mlx_notebook.errors import ModelLoadError, OverBudget, about_model
from mlx_notebook.models.backend_check import import_mlx, only_float32_is_fast
from mlx_notebook.models.cache_folder import MANIFEST
from mlx_notebook.models.describe import (
    LoadedModel,
    context_length,
    describe_loaded,
    recommended_sampling,
    vocab_size_of,
)
from mlx_notebook.models.evaluate import evaluate_everything, grouped
from mlx_notebook.models.memory import free_memory
from mlx_notebook.models.model_files import ModelFiles, read_model_files
from mlx_notebook.models.own_thread import on_own_thread
from mlx_notebook.models.roundtrip import check_round_trips, mend_decoder
from mlx_notebook.models.sizes import Types, choose_types, is_quantised, load_bytes, running_dtype

if TYPE_CHECKING:
    from mlx_notebook.models.resolve import ResolvedModel

__all__ = ["LoadedModel", "describe_loaded", "evaluate_everything", "load"]

Progress = Callable[[str, float | None], None]


def load(
    resolved: ResolvedModel,
    *,
    dtype: str | None = None,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
    check_cancel: Callable[[], None] | None = None,
    check_model: Callable[[Any], None] | None = None,
    memory_budget: int | None = None,
) -> LoadedModel:
    """Load a model on the calling thread.

    Args:
        resolved: what `resolve` gave.
        dtype: `float32`, `float16` or `bfloat16` (quantised matrices become plain ones), or `4bit`
            (quantised matrices stay as they are). By default float32 on a Linux CPU, which is its
            fast path, and elsewhere what the file holds.
        trust_remote_code: run Python code that the model's folder brings.
        progress: called with a word for what is being done and the share done (None where unknown).
        check_cancel: called between groups of weights; what it raises ends the load.
        check_model: given the model before a weight is read, to look at its shapes; what it raises ends the load.
        memory_budget: bytes the weights may take; by default what is free now.

    Raises:
        ValueError: an unknown dtype, or `4bit` for a model that is not quantised.
        BackendMissing: MLX cannot run here.
        OverBudget: the weights need more memory than there is; nothing was loaded.
        ModelLoadError: the folder cannot be used; the message says why.
    """
    import_mlx()
    report = progress or (lambda _stage, _share: None)
    cancel = check_cancel or (lambda: None)
    files, types = _read_headers(resolved, dtype, trust_remote_code)
    _check_memory(files, types, free_memory() if memory_budget is None else memory_budget, resolved.name)
    report("reading weights", 0.0)
    model, config = _build(files, resolved, trust_remote_code)
    if check_model is not None:
        with about_model(resolved.name):
            check_model(model)
    model = _settle_weights(model, types, report, cancel)
    cancel()
    report("reading tokenizer", None)
    tokenizer = _load_tokenizer(files, config, resolved, trust_remote_code)
    with about_model(resolved.name):
        vocab_size = vocab_size_of(model, files.config)
    if _is_converted(files):  # by us, so ours to prove
        check_round_trips(tokenizer, vocab_size, resolved.name)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        config=config,
        name=resolved.name,
        source=resolved.source,
        revision=resolved.revision,
        dtype=running_dtype(files, types),
        quantised=is_quantised(files) and not types.plain,
        weight_bytes=evaluate_everything(model, check_cancel=cancel),
        context_length=context_length(files.config),
        vocab_size=vocab_size,
        eos_token_ids=tuple(sorted(int(i) for i in tokenizer.eos_token_ids)),
        recommended_sampling=recommended_sampling(files.generation),
        chat_template_present=bool(tokenizer.has_chat_template),
    )


def check_loadable(
    resolved: ResolvedModel,
    *,
    dtype: str | None = None,
    trust_remote_code: bool = False,
    held_by_others: int = 0,
    check_model: Callable[[Any], None] | None = None,
) -> None:
    """Raise what `load` would raise of this model, as far as its files show it; no weight is read.

    Args:
        resolved, dtype, trust_remote_code: as for `load`.
        held_by_others: bytes that will be free by the time of the load, beside what is free now.
        check_model: given the model with its weights still lazy, to look at its shapes.

    Raises:
        As `load`.
    """
    import_mlx()
    files, types = _read_headers(resolved, dtype, trust_remote_code)
    _check_memory(files, types, free_memory() + held_by_others, resolved.name)
    if check_model is not None:
        with about_model(resolved.name):
            on_own_thread(lambda: check_model(_build(files, resolved, trust_remote_code)[0]))


def _read_headers(resolved: ResolvedModel, dtype: str | None, trusted: bool) -> tuple[ModelFiles, Types]:
    files = read_model_files(resolved.path, trust_remote_code=trusted)
    return files, choose_types(files, dtype, slow_halves=only_float32_is_fast())


def _check_memory(files: ModelFiles, types: Types, budget: int, name: str) -> None:
    needed = load_bytes(files, types)
    if needed <= budget:
        return
    smaller = load_bytes(files, Types(plain=False, floats=None))
    word = "4bit" if is_quantised(files) else "bfloat16"
    hint = (
        f" With dtype={word!r} it needs {_gigabytes(smaller)}."
        if types.floats == "float32" and smaller < needed
        else ""
    )
    raise OverBudget(
        f"{name} needs {_gigabytes(needed)} as {running_dtype(files, types)} and {_gigabytes(budget)} are free.{hint} "
        "Unload another model (`%mlxunload`), or choose a smaller or quantised one.",
        needed=needed,
        budget=budget,
    )


def _gigabytes(number: int) -> str:
    return f"{number / 1e9:.2f} GB"


def _build(files: ModelFiles, resolved: ResolvedModel, trusted: bool) -> tuple[Any, dict[str, Any]]:
    """The model with its weights still lazy."""
    from mlx_lm.utils import load_model

    try:
        model, config = load_model(files.folder, lazy=True, strict=True, trust_remote_code=trusted)
    except MemoryError:
        raise
    except Exception as error:
        raise ModelLoadError(
            f"{resolved.name} ({files.config['model_type']}) could not be built from {files.folder}: "
            f"{type(error).__name__}: {_shortened(error)}",
            model=resolved.name,
        ) from error
    return model, config


def _shortened(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else f"{text[:300]}..."


def _settle_weights(model: Any, types: Types, report: Progress, cancel: Callable[[], None]) -> Any:
    """Convert and evaluate weights group by group, so that source and result are held twice only for one group."""
    from mlx_notebook.models.widen import dequantise, modules_with_weights, settle

    if types.plain and types.floats is not None:
        model = dequantise(model, types.floats)
    modules = modules_with_weights(model)
    keeps = getattr(model, "cast_predicate", None) or (lambda _path: True)
    total = sum(size for _, _, size in modules) or 1
    done = 0
    for group in grouped(modules, lambda module: int(module[2])):
        cancel()
        settle(group, types.floats, keeps)
        done += sum(size for _, _, size in group)
        report("reading weights", done / total)
    return model


def _load_tokenizer(files: ModelFiles, config: dict[str, Any], resolved: ResolvedModel, trusted: bool) -> Any:
    from mlx_lm.utils import load_tokenizer

    endings = _ending_ids(config.get("eos_token_id"), files.generation.get("eos_token_id"))
    try:
        if _is_converted(files):
            tokenizer = _exact_tokenizer(files, endings)
        else:
            tokenizer = load_tokenizer(files.folder, {"trust_remote_code": trusted}, eos_token_ids=endings)
    except Exception as error:
        raise ModelLoadError(
            f"The tokenizer of {resolved.name} in {files.folder} could not be read: "
            f"{type(error).__name__}: {_shortened(error)}",
            model=resolved.name,
        ) from error
    mend_decoder(tokenizer, resolved.name)
    return tokenizer


def _exact_tokenizer(files: ModelFiles, endings: list[int] | None) -> Any:
    """The converter's tokenizer.json as it stands: the automatic choice of a class would rebuild parts of it."""
    from mlx_lm.tokenizer_utils import BPEStreamingDetokenizer, NaiveStreamingDetokenizer, TokenizerWrapper
    from tokenizers.decoders import ByteLevel
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(files.folder)
    byte_level = isinstance(tokenizer.backend_tokenizer.decoder, ByteLevel)
    stream = BPEStreamingDetokenizer if byte_level else NaiveStreamingDetokenizer
    return TokenizerWrapper(tokenizer, stream, eos_token_ids=endings)


def _is_converted(files: ModelFiles) -> bool:
    return (files.folder / MANIFEST).is_file()


def _ending_ids(*sources: Any) -> list[int] | None:
    """End tokens of config.json and generation_config.json together; each may give one, several or none."""
    ids: list[int] = []
    for source in sources:
        listed = source if isinstance(source, list) else [source]
        ids += [int(i) for i in listed if isinstance(i, int) and not isinstance(i, bool)]
    return list(dict.fromkeys(ids)) or None
