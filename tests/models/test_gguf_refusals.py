"""Every way a GGUF file can be wrong is said clearly, and leaves nothing in the cache."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from mlx_notebook.errors import ModelLoadError, ModelNotFound
from mlx_notebook.models import resolve
from mlx_notebook.models.cache_folder import cache_root
from tests.models.gguf_files import Vocabulary, write_small

if TYPE_CHECKING:
    from pathlib import Path


def refused(path: Path, said: str) -> None:
    before = set(cache_root().iterdir()) if cache_root().is_dir() else set()
    with pytest.raises(ModelLoadError, match=said) as caught:
        resolve(path)
    assert path.name in str(caught.value) or "Tensor" in str(caught.value)
    assert caught.value.model in (str(path), path.name)
    after = set(cache_root().iterdir()) if cache_root().is_dir() else set()
    assert {p for p in after - before if p.name != "hashes.json"} == set()


@pytest.mark.parametrize("content", [b"", b"GG", b"<!DOCTYPE html>", b"version https://git-lfs.github.com/spec/v1\n"])
def test_a_foreign_file(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "foreign.gguf").write_bytes(content)
    refused(tmp_path / "foreign.gguf", "not a GGUF file")


def test_a_file_that_ends_after_the_magic(tmp_path: Path) -> None:
    (tmp_path / "stub.gguf").write_bytes(b"GGUF")
    refused(tmp_path / "stub.gguf", "cut short")


@pytest.mark.parametrize("keep", [8, 20, 24, 100, 2_000, 0.5, 0.99])
def test_a_truncated_file(keep: float, tmp_path: Path) -> None:
    write_small(tmp_path / "whole.gguf", "llama")
    whole = (tmp_path / "whole.gguf").read_bytes()
    length = int(keep) if keep >= 1 else int(len(whole) * keep)
    (tmp_path / "part.gguf").write_bytes(whole[:length])
    refused(tmp_path / "part.gguf", "damaged or cut short|names no architecture")


def test_lengths_that_cannot_be_true(tmp_path: Path) -> None:
    write_small(tmp_path / "whole.gguf", "llama")
    broken = bytearray((tmp_path / "whole.gguf").read_bytes())
    broken[24:32] = struct.pack("<Q", 2**60)  # the first key's length
    (tmp_path / "huge.gguf").write_bytes(bytes(broken))
    refused(tmp_path / "huge.gguf", "damaged or cut short")


def test_a_big_endian_file(tmp_path: Path) -> None:
    (tmp_path / "big.gguf").write_bytes(b"GGUF" + struct.pack(">I", 3) + bytes(100))
    refused(tmp_path / "big.gguf", "big-endian")


def test_a_version_of_the_future(tmp_path: Path) -> None:
    (tmp_path / "new.gguf").write_bytes(b"GGUF" + struct.pack("<I", 9) + bytes(100))
    refused(tmp_path / "new.gguf", "version 9")


def test_an_unknown_architecture(tmp_path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "bert.gguf", "bert")
    writer.add_tensor("x", np.zeros((2, 32), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    refused(tmp_path / "bert.gguf", r"architecture 'bert'.*gemma3, llama, qwen2")


def test_no_tokenizer(tmp_path: Path) -> None:
    write_small(tmp_path / "mute.gguf", "llama", vocabulary=Vocabulary("none", ["a"] * 40, [1] * 40))
    refused(tmp_path / "mute.gguf", "carries no tokenizer")


def test_one_part_of_several(tmp_path: Path) -> None:
    write_small(tmp_path / "part.gguf", "llama", metadata={"split.count": 3})
    refused(tmp_path / "part.gguf", "one part of 3")


@pytest.mark.parametrize(
    ("family", "metadata", "said"),
    [
        ("llama", {"{arch}.expert_count": 8}, "mixture of experts"),
        ("gemma3", {"{arch}.final_logit_softcapping": 30.0}, "soft-capped"),
        ("llama", {"{arch}.rope.dimension_count": 8}, "rotates 8 of 16"),
        ("llama", {"{arch}.rope.scaling.type": "longrope", "{arch}.rope.scaling.factor": 2.0}, "'longrope'"),
        ("qwen2", {"{arch}.rope.scaling.type": "yarn", "{arch}.rope.scaling.factor": 4.0}, "original context length"),
        ("llama", {"tokenizer.ggml.padding_token_id": 100_000}, "outside the vocabulary"),
        ("llama", {"{arch}.attention.head_count_kv": [2, 2]}, r"'llama\.attention\.head_count_kv' holds a list of 2"),
        ("llama", {"{arch}.feed_forward_length": [64, 64]}, r"'llama\.feed_forward_length' holds a list of 2"),
        ("qwen2", {"{arch}.attention.head_count": "four"}, r"'qwen2\.attention\.head_count' holds 'four'"),
        ("llama", {"{arch}.attention.head_count": 0}, "head_count' holds 0, and one whole number from 1"),
        ("llama", {"{arch}.block_count": True}, "block_count' holds True"),
        ("llama", {"{arch}.context_length": 1.5}, "context_length' holds 1.5"),
        ("gemma3", {"{arch}.attention.sliding_window": [16, 16]}, "sliding_window' holds a list"),
        ("gemma3", {"{arch}.rope.freq_base": [1.0, 2.0]}, "freq_base' holds a list of 2"),
        ("llama", {"{arch}.rope.freq_base": float("nan")}, "freq_base' holds nan, and one number"),
        ("llama", {"{arch}.rope.scaling.factor": "two"}, "factor' holds 'two'"),
        ("llama", {"tokenizer.ggml.padding_token_id": [1, 2]}, "padding_token_id' holds a list of 2"),
        ("llama", {"split.count": "many"}, "split.count' holds 'many'"),
        ("llama", {"{arch}.attention.head_count": 7, "{arch}.attention.key_length": 16}, "contradicts itself"),
    ],
)
def test_what_is_not_understood_is_refused(family: str, metadata: dict[str, Any], said: str, tmp_path: Path) -> None:
    write_small(tmp_path / "odd.gguf", family, metadata=metadata)
    refused(tmp_path / "odd.gguf", said)


@pytest.mark.parametrize(("key", "value"), [("tokens", [1, 2, 3]), ("token_type", ["a", "b"]), ("merges", [1, 2])])
def test_a_vocabulary_of_something_else_is_named(
    key: str, value: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import gguf

    written: Any = gguf.GGUFWriter.add_array
    name = f"tokenizer.ggml.{key}"

    def add(writer: Any, key: str, given: Any) -> None:
        written(writer, key, value if key == name else given)

    monkeypatch.setattr(gguf.GGUFWriter, "add_array", add)
    write_small(tmp_path / "odd.gguf", "llama")
    refused(tmp_path / "odd.gguf", f"'{name}' holds a list")


def test_a_tensor_that_nobody_knows(tmp_path: Path) -> None:
    write_small(tmp_path / "more.gguf", "llama", tensors={"blk.0.attn_sinks.weight": np.zeros(4, dtype=np.float32)})
    refused(tmp_path / "more.gguf", "attn_sinks")


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no file or folder"):
        resolve(tmp_path / "absent.gguf")


def test_a_close_file_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_small(tmp_path / "chatty-model.gguf", "llama")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound) as caught:
        resolve("chaty-model.gguf")
    assert caught.value.suggestions == ("chatty-model.gguf",)
