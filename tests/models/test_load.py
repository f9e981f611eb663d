"""Folders load as they are or say clearly why not, before memory is taken."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from safetensors import safe_open

from mlx_notebook.errors import ModelLoadError, OverBudget
from mlx_notebook.models import evaluate, resolve
from mlx_notebook.models.describe import context_length, describe_loaded, recommended_sampling
from mlx_notebook.models.evaluate import reachable_arrays
from mlx_notebook.models.load import LoadedModel, load
from mlx_notebook.models.model_files import read_model_files
from mlx_notebook.models.safetensors_file import read_header
from mlx_notebook.models.sizes import Types, load_bytes, weight_bytes
from tests.models.folders import change_config, write_folder, write_quantised_folder
from tests.small_models import CONTEXT, KINDS, VOCAB, random_prompt, small

if TYPE_CHECKING:
    from pathlib import Path

PROMPT = random_prompt(12)


def loaded(folder: Path, **options: Any) -> LoadedModel:
    return load(resolve(folder), **options)


def logits(model: Any) -> mx.array:
    found: mx.array = model(mx.array([PROMPT]))[0].astype(mx.float32)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_layer_kind_loads_as_written(kind: str, tmp_path: Path) -> None:
    original = write_folder(tmp_path / "m", kind)
    found = loaded(tmp_path / "m")
    assert mx.array_equal(logits(found.model), logits(original))
    assert (found.vocab_size, found.context_length, found.eos_token_ids) == (VOCAB, CONTEXT, (2,))
    assert found.chat_template_present
    assert found.weight_bytes >= sum(a.nbytes for a in reachable_arrays(original)) // 2


def test_on_a_linux_cpu_everything_becomes_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "m", dtype="bfloat16")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(mx, "default_device", lambda: mx.cpu)
    found = loaded(tmp_path / "m")
    assert found.dtype == "float32"
    assert {a.dtype for a in reachable_arrays(found.model)} == {mx.float32}


def test_elsewhere_weights_keep_their_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "m", dtype="bfloat16")
    monkeypatch.setattr(sys, "platform", "darwin")
    found = loaded(tmp_path / "m")
    assert found.dtype == "bfloat16"
    assert {a.dtype for a in reachable_arrays(found.model)} == {mx.bfloat16}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_type_can_be_asked_for(dtype: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "m", dtype="bfloat16")
    found = loaded(tmp_path / "m", dtype=dtype)
    assert found.dtype == dtype
    assert found.model.model.embed_tokens.weight.dtype == getattr(mx, dtype)


@pytest.mark.parametrize(("bits", "group"), [(4, 32), (8, 64), (6, 64)])
def test_quantised_folders_stay_or_become_plain(bits: int, group: int, tmp_path: Path) -> None:
    original = write_quantised_folder(tmp_path / "m", bits, group)
    kept = loaded(tmp_path / "m", dtype="4bit")
    assert kept.quantised
    plain = loaded(tmp_path / "m", dtype="float32")
    assert not plain.quantised
    for found in (kept, plain):
        difference = mx.abs(logits(found.model) - logits(original)).max() / mx.abs(logits(original)).max()
        assert float(difference) < 1e-3
    for types, found in ((Types(plain=True, floats="float32"), plain), (Types(plain=False, floats="float32"), kept)):
        files = read_model_files(tmp_path / "m", trust_remote_code=False)
        assert weight_bytes(files, types) == sum(a.nbytes for a in reachable_arrays(found.model.parameters()))


def test_4bit_of_plain_weights_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "m")
    with pytest.raises(ValueError, match="quantised already"):
        loaded(tmp_path / "m", dtype="4bit")


def test_an_unknown_type_is_refused(tmp_path: Path) -> None:
    write_folder(tmp_path / "m")
    with pytest.raises(ValueError, match=r"dtype='int3'.*float32, float16, bfloat16, 4bit"):
        loaded(tmp_path / "m", dtype="int3")


def test_too_big_is_refused_with_both_numbers_before_a_weight_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_quantised_folder(tmp_path / "m")
    files = read_model_files(tmp_path / "m", trust_remote_code=False)
    needed = load_bytes(files, Types(plain=True, floats="float32"))
    monkeypatch.setattr(mx, "load", lambda *_: pytest.fail("a weight was read"))
    with pytest.raises(OverBudget, match="dtype='4bit' it needs") as caught:
        loaded(tmp_path / "m", dtype="float32", memory_budget=needed - 1)
    assert (caught.value.needed, caught.value.budget) == (needed, needed - 1)
    monkeypatch.undo()
    assert loaded(tmp_path / "m", dtype="float32", memory_budget=needed).weight_bytes <= needed


def test_by_default_free_memory_is_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "m")
    monkeypatch.setattr(sys.modules["mlx_notebook.models.load"], "free_memory", lambda: 1000)
    with pytest.raises(OverBudget) as caught:
        loaded(tmp_path / "m")
    assert caught.value.budget == 1000


def test_an_interrupt_between_groups_ends_the_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "m")
    monkeypatch.setattr(evaluate, "GROUP_BYTES", 10_000)
    calls: list[int] = []

    def cancel() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        loaded(tmp_path / "m", check_cancel=cancel)
    assert len(calls) == 3


def test_progress_rises_to_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "m")
    monkeypatch.setattr(evaluate, "GROUP_BYTES", 10_000)
    seen: list[tuple[str, float | None]] = []
    loaded(tmp_path / "m", progress=lambda stage, share: seen.append((stage, share)))
    shares = [share for stage, share in seen if stage == "reading weights" and share is not None]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert len(shares) > 3


def test_recommended_sampling_and_more_end_tokens_come_from_the_makers(tmp_path: Path) -> None:
    write_folder(tmp_path / "m")
    sampling = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    settings = {**sampling, "eos_token_id": [2, 0], "max_length": 9, "do_sample": True}
    (tmp_path / "m" / "generation_config.json").write_text(json.dumps(settings))
    found = loaded(tmp_path / "m")
    assert found.recommended_sampling == sampling
    assert found.eos_token_ids == (0, 2)


def test_greedy_makers_recommend_no_temperature() -> None:
    assert recommended_sampling({"do_sample": False, "temperature": 0.7, "repetition_penalty": 1.1}) == {
        "repetition_penalty": 1.1
    }
    assert recommended_sampling({"temperature": None, "top_p": True, "top_k": "50"}) == {}


def test_context_lengths_by_any_name() -> None:
    assert context_length({"n_positions": 7}) == 7
    assert context_length({"text_config": {"max_position_embeddings": 9}}) == 9
    assert context_length({"max_position_embeddings": None, "max_seq_len": True}) is None


def refused(folder: Path, said: str, **options: Any) -> None:
    with pytest.raises(ModelLoadError, match=said):
        loaded(folder, **options)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model_type": "nothing_like_it"}, r"'nothing_like_it' is not supported.*pip install -U mlx-lm"),
        ({"model_type": "../evil"}, "not supported"),
        ({"model_type": None}, "names no 'model_type'"),
        ({"model_file": "own.py"}, "trust_remote_code=True"),
        ({"model_type": "new_one", "auto_map": {"AutoModel": "x.Y"}}, "trust_remote_code=True"),
        ({"hidden_size": 128}, "could not be built"),
        ({"intermediate_size": 256}, "could not be built"),
    ],
)
def test_a_wrong_configuration(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "m")
    change_config(tmp_path / "m", **change)
    refused(tmp_path / "m", said)


def test_auto_map_of_a_known_architecture_runs_no_code(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", auto_map={"AutoModelForCausalLM": "modeling.Model"})
    (tmp_path / "m" / "modeling.py").write_text("raise SystemExit('the code ran')")
    assert loaded(tmp_path / "m").vocab_size == VOCAB


def test_a_tokenizer_with_code_of_its_own(tmp_path: Path) -> None:
    write_folder(tmp_path / "m")
    path = tmp_path / "m" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": {"AutoTokenizer": [None, "own.Tok"]}}))
    refused(tmp_path / "m", "trust_remote_code=True")


def test_trusted_code_runs(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", model_file="own.py")
    (tmp_path / "m" / "own.py").write_text("from mlx_lm.models.llama import Model, ModelArgs\n")
    assert loaded(tmp_path / "m", trust_remote_code=True).vocab_size == VOCAB


def damage(folder: Path, how: str) -> None:
    weights = folder / "model.safetensors"
    if how == "cut":
        weights.write_bytes(weights.read_bytes()[:-10])
    elif how == "pointer":
        weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    elif how == "empty":
        weights.write_bytes(b"")
    elif how == "gone":
        weights.unlink()
    elif how == "other format":
        weights.rename(folder / "pytorch_model.bin")
    elif how == "shard gone":
        index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    elif how == "config json":
        (folder / "config.json").write_text("{")
    elif how == "config list":
        (folder / "config.json").write_text("[]")
    elif how == "tokenizer json":
        (folder / "tokenizer.json").write_text("{")
    else:
        for file in folder.glob("*token*"):
            file.unlink()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("cut", "cut short"),
        ("pointer", "not a readable safetensors file.*Git LFS"),
        ("empty", "not a readable safetensors file"),
        ("gone", "holds no weights"),
        ("other format", r"holds pytorch_model.bin; convert.*mlx_lm.convert"),
        ("shard gone", "lacks 1 of 2 weight files.*model-00002-of-00002"),
        ("config json", "not readable JSON"),
        ("config list", "not a JSON object"),
        ("tokenizer json", "tokenizer of .* could not be read"),
        ("no tokenizer", "holds no tokenizer"),
    ],
)
def test_a_damaged_folder(how: str, said: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "m")
    damage(tmp_path / "m", how)
    refused(tmp_path / "m", said)


def test_a_missing_decoder_is_chosen_from_the_vocabulary(tmp_path: Path) -> None:
    """Without one, text comes out with the vocabulary's marks for spaces in it."""
    write_folder(tmp_path / "m")
    path = tmp_path / "m" / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"decoder": None}))
    tokenizer = loaded(tmp_path / "m").tokenizer
    assert tokenizer.decode(tokenizer.encode("the fox, über\nall")) == "the fox, über\nall"


def test_an_error_that_knows_only_a_part_says_which_model_it_is_about(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = small("llama")
    monkeypatch.setattr(type(model), "named_modules", lambda _model: [])
    model.args.vocab_size = None
    with pytest.raises(ModelLoadError, match="how many tokens") as caught:
        describe_loaded(model, tokenizer, name="mine")
    assert caught.value.model == "mine"


def test_headers_are_read_as_the_library_reads_them(tmp_path: Path) -> None:
    write_quantised_folder(tmp_path / "m")
    ours = read_header(tmp_path / "m" / "model.safetensors")
    with safe_open(str(tmp_path / "m" / "model.safetensors"), framework="np") as file:
        theirs = {k: (file.get_slice(k).get_dtype(), tuple(file.get_slice(k).get_shape())) for k in file.keys()}  # noqa: SIM118
    assert {name: (info.dtype, info.shape) for name, info in ours.items()} == theirs


def test_what_the_caller_loaded_is_described(tmp_path: Path) -> None:
    model, tokenizer = small("llama")
    found = describe_loaded(model, tokenizer)
    assert (found.vocab_size, found.context_length, found.eos_token_ids) == (VOCAB, CONTEXT, (2,))
    assert (found.dtype, found.quantised, found.chat_template_present) == ("float32", False, True)
    assert found.weight_bytes == sum(a.nbytes for a in reachable_arrays(model))
    from mlx_lm import load as mlx_lm_load

    write_quantised_folder(tmp_path / "m")
    pair = mlx_lm_load(str(tmp_path / "m"))[:2]
    again = describe_loaded(*pair)
    assert (again.dtype, again.quantised) == ("4bit", True)
    plain = describe_loaded(model, tokenizer._tokenizer)
    assert plain.eos_token_ids == (2,)
    with pytest.raises(TypeError, match="second value"):
        describe_loaded(model, "tokenizer")


def test_a_converted_folder_that_was_copied_loads_too(tmp_path: Path) -> None:
    from tests.models.gguf_files import write_small

    write_small(tmp_path / "a.gguf", "llama", quantisation="Q4_1")
    folder = resolve(tmp_path / "a.gguf").path
    shutil.copytree(folder, tmp_path / "copy")
    assert mx.array_equal(logits(loaded(tmp_path / "copy").model), logits(load(resolve(tmp_path / "a.gguf")).model))
