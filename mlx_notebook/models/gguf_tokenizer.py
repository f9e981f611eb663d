"""A GGUF file's vocabulary as `tokenizer.json` and `tokenizer_config.json`.

Two kinds: byte-level byte-pair encoding (`gpt2`), and SentencePiece with scores (`llama`, also
used by gemma). llama.cpp tokenises the second by merging, again and again, the neighbouring
pair whose joint piece has the best score: that is byte-pair encoding whose merges are ranked
by score, with bytes as the fallback, and so it is written here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mlx_notebook.errors import ModelLoadError
from mlx_notebook.models.gguf_pretokenizers import begins_with_token, normalizer, pre_tokenizer, takes_whole_words

if TYPE_CHECKING:
    from mlx_notebook.models.gguf_file import GgufFile

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
SPACE_MARK = "\u2581"

# Control tokens that end a turn or a text, whatever the file's own end-of-sequence token is.
_ENDING_TOKENS = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
)
_ENDING_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


@dataclass(frozen=True)
class Vocabulary:
    """What the file says of its tokens, by id."""

    kind: str
    tokens: list[str]
    types: list[int]
    scores: list[float]


@dataclass(frozen=True)
class TokenizerFiles:
    """Contents of the two files, and the ids that begin and end a text."""

    tokenizer: dict[str, Any]
    config: dict[str, Any]
    bos_token_id: int | None
    eos_token_ids: list[int]


def tokenizer_files(file: GgufFile) -> TokenizerFiles:
    """Build both files.

    Raises:
        ModelLoadError: no vocabulary, an unknown kind, or one that contradicts itself.
    """
    vocabulary = _read_vocabulary(file)
    kind = str(file.get("tokenizer.ggml.pre", "default"))
    core = _byte_level(file, vocabulary, kind) if vocabulary.kind == "gpt2" else _sentence_piece(file, vocabulary)
    bos = _special_id(file, vocabulary, "bos_token_id")
    eos = _special_id(file, vocabulary, "eos_token_id")
    default_begin = vocabulary.kind == "llama" or begins_with_token(kind)
    begin = bool(file.get("tokenizer.ggml.add_bos_token", default_begin)) and bos is not None
    end = bool(file.get("tokenizer.ggml.add_eos_token", False)) and eos is not None
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary),
        **core,
        "post_processor": _frame(vocabulary, bos if begin else None, eos if end else None),
    }
    return TokenizerFiles(tokenizer, _config(file, vocabulary, bos, eos), bos, _ending_ids(file, vocabulary))


def _read_vocabulary(file: GgufFile) -> Vocabulary:
    kind = file.get("tokenizer.ggml.model")
    tokens = file.listed("tokenizer.ggml.tokens", str, "texts")
    if kind is None or not tokens:
        raise ModelLoadError(
            f"{file.path.name} carries no tokenizer (tokenizer.ggml.*), so text cannot be encoded for it. "
            "Use a file made by llama.cpp's convert_hf_to_gguf.py without --no-vocab.",
            model=str(file.path),
        )
    if kind not in ("gpt2", "llama"):
        raise ModelLoadError(
            f"{file.path.name} has a tokenizer of kind {kind!r}; byte-level ('gpt2') and SentencePiece ('llama') "
            "vocabularies can be loaded.",
            model=str(file.path),
        )
    types = file.listed("tokenizer.ggml.token_type", int, "whole numbers") or [NORMAL] * len(tokens)
    scores = file.listed("tokenizer.ggml.scores", int | float, "numbers")
    if len(types) != len(tokens) or (kind == "llama" and len(scores) != len(tokens)):
        raise ModelLoadError(
            f"{file.path.name}: the tokenizer's lists differ in length; the file is damaged.", model=str(file.path)
        )
    if len(set(tokens)) != len(tokens):
        raise ModelLoadError(
            f"{file.path.name}: the vocabulary holds the same token twice; the file is damaged.", model=str(file.path)
        )
    return Vocabulary(str(kind), list(tokens), types, [float(s) for s in scores])


def _byte_level(file: GgufFile, vocabulary: Vocabulary, kind: str) -> dict[str, Any]:
    merges = file.listed("tokenizer.ggml.merges", str, "texts")
    if file.get("tokenizer.ggml.merges") is None:
        raise ModelLoadError(
            f"{file.path.name} has a byte-level vocabulary without merges; the file is damaged.", model=str(file.path)
        )
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    bad = next((p for p in pairs if len(p) != 2 or p[0] + p[1] not in ids or p[0] not in ids or p[1] not in ids), None)
    if bad is not None:
        raise ModelLoadError(
            f"{file.path.name}: the merge {' '.join(bad)!r} uses a piece that the vocabulary lacks.",
            model=str(file.path),
        )
    return {
        "normalizer": normalizer(kind),
        "pre_tokenizer": pre_tokenizer(kind),
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": _bpe(ids, [list(p) for p in pairs], ignore_merges=takes_whole_words(kind)),
    }


def _sentence_piece(file: GgufFile, vocabulary: Vocabulary) -> dict[str, Any]:
    prefix = bool(file.get("tokenizer.ggml.add_space_prefix", True))
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE_MARK}
    prepend = {"type": "Prepend", "prepend": SPACE_MARK}
    back = {"type": "Replace", "pattern": {"String": SPACE_MARK}, "content": " "}
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    unknown = next(
        (token for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind == UNKNOWN), None
    )
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    decoders = [back, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return {
        "normalizer": {"type": "Sequence", "normalizers": [prepend, replace]} if prefix else replace,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [*decoders, strip] if prefix else decoders},
        "model": _bpe(ids, ranked_merges(vocabulary), unk_token=unknown, fuse_unk=True, byte_fallback=True),
    }


def ranked_merges(vocabulary: Vocabulary) -> list[list[str]]:
    """Every way to join two pieces into a third, best score first.

    Equal scores go by id, and one piece's several splits by the ids of their halves. Control,
    byte and user-defined tokens take no part: those never come out of plain text by merging.
    """
    ids = {
        token: i
        for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind in {NORMAL, UNUSED}
    }
    found = []
    for token, i in ids.items():
        for cut in range(1, len(token)):
            left, right = ids.get(token[:cut]), ids.get(token[cut:])
            if left is not None and right is not None:
                found.append((-vocabulary.scores[i], i, left, right))
    found.sort()
    return [[vocabulary.tokens[left], vocabulary.tokens[right]] for _, _, left, right in found]


def _bpe(ids: dict[str, int], merges: list[list[str]], **settings: Any) -> dict[str, Any]:
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return model | settings | {"vocab": ids, "merges": merges}


def _added_tokens(vocabulary: Vocabulary) -> list[dict[str, Any]]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": i, "content": token, **flags, "special": kind != USER_DEFINED}
        for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.types, strict=True))
        if kind in {UNKNOWN, CONTROL, USER_DEFINED} and token
    ]


def _frame(vocabulary: Vocabulary, bos: int | None, eos: int | None) -> dict[str, Any] | None:
    """The post-processor that puts begin and end tokens around a text."""
    if bos is None and eos is None:
        return None

    def piece(i: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": vocabulary.tokens[i], "type_id": 0}}

    before, after = [piece(bos)] if bos is not None else [], [piece(eos)] if eos is not None else []
    return {
        "type": "TemplateProcessing",
        "single": [*before, {"Sequence": {"id": "A", "type_id": 0}}, *after],
        "pair": [*before, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}, *after],
        "special_tokens": {
            vocabulary.tokens[i]: {"id": vocabulary.tokens[i], "ids": [i], "tokens": [vocabulary.tokens[i]]}
            for i in (bos, eos)
            if i is not None
        },
    }


def _special_id(file: GgufFile, vocabulary: Vocabulary, key: str) -> int | None:
    value = file.get(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    number = file.as_whole(f"tokenizer.ggml.{key}", value)
    if number >= len(vocabulary.tokens):
        raise ModelLoadError(
            f"{file.path.name}: {key} {value} lies outside the vocabulary; the file is damaged.", model=str(file.path)
        )
    return number


def _ending_ids(file: GgufFile, vocabulary: Vocabulary) -> list[int]:
    named = [_special_id(file, vocabulary, key) for key in _ENDING_KEYS]
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    known = [ids[t] for t in _ENDING_TOKENS if t in ids and vocabulary.types[ids[t]] in {CONTROL, USER_DEFINED}]
    return list(dict.fromkeys([i for i in named if i is not None] + known))


def _config(file: GgufFile, vocabulary: Vocabulary, bos: int | None, eos: int | None) -> dict[str, Any]:
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": file.whole("context_length"),
        "added_tokens_decoder": {
            str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in _added_tokens(vocabulary)
        },
    }
    padding = _special_id(file, vocabulary, "padding_token_id")
    unknown = _special_id(file, vocabulary, "unknown_token_id")
    for name, i in (("bos_token", bos), ("eos_token", eos), ("pad_token", padding), ("unk_token", unknown)):
        if i is not None:
            config[name] = vocabulary.tokens[i]
    template = file.get("tokenizer.chat_template")
    if isinstance(template, str) and template:
        config["chat_template"] = template
    return config
