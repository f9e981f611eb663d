"""A layer of a pooled step in one launch: found in a model by its parts, tried by the parity probe like any store.

A layer qualifies that has the parts of Llama's: two RMS norms, attention with joined queries, keys and values whose
heads wait for their rope (`late`), a gated inner part, no biases, plain weights in half precision. That it also uses
them as Llama does is not looked up anywhere: the launch computes what Llama computes, and a model that does otherwise
has other logits, which the probe at load sees.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx.nn.layers.activations import silu
from mlx.nn.layers.base import Module
from mlx.nn.layers.linear import Linear
from mlx.nn.layers.normalization import RMSNorm

from mlx_notebook.engine.stores.late import LateRope

if TYPE_CHECKING:
    from mlx_notebook.engine.stores.cuda_layers import CudaLayers
    from mlx_notebook.engine.stores.late import Late

BLOCK_OF_INPUTS = 64
"""Inputs that a warp of the kernel takes at once."""

NORMS = ("input_layernorm", "post_attention_layernorm")
HALVES = (mx.bfloat16, mx.float16)


@dataclass(frozen=True, slots=True)
class LayerParts:
    """Arrays and numbers of one layer.

    Attributes:
        norms: weights of both norms, [H] each.
        heads: queries, keys and values joined, [(G + 2) * KV * D, H].
        out: of attention, [H, G * KV * D].
        opened: gate and up joined, [2 * I, H].
        down: [H, I].
        rope: what turns the heads.
        eps: of both norms.
        scale: of the scores.
        own: key heads.
    """

    norms: tuple[mx.array, mx.array]
    heads: mx.array
    out: mx.array
    opened: mx.array
    down: mx.array
    rope: LateRope
    eps: float
    scale: float
    own: int


class WholeLayers:
    """The layers of one twin that one launch can serve.

    Attributes:
        on: whether it does; if not, all is as in the twin.
        found: how many there are.
    """

    def __init__(self, model: Any, twin: Any, late: Late, launch: CudaLayers) -> None:
        self.on = True
        self.found = 0
        self.late = late
        self.launch = launch
        self._replace(model, twin)

    def _replace(self, model: Any, twin: Any) -> None:
        """Put ours in the twin's lists of layers, wherever in the model they are."""
        for key, child in model.items():
            if isinstance(child, Module):
                self._replace(child, twin[key])
            elif isinstance(child, list):
                for at, layer in enumerate(child):
                    parts = parts_of(layer, twin[key][at])
                    if parts is not None:
                        twin[key][at] = WholeLayer(twin[key][at], parts, self)
                        self.found += 1


class WholeLayer:
    """Stands where a layer stood, and calls that one whenever it is not for us.

    More rows than a launch can serve go through MLX's products, in as few operations as a layer can be put: sums of
    the residual stream are part of the products, and nothing has more than two dimensions, for which views are made.
    """

    def __init__(self, plain: Any, parts: LayerParts, whole: WholeLayers) -> None:
        self._plain = plain
        self._parts = parts
        self._whole = whole
        self._across = [weight.T for weight in (parts.heads, parts.out, parts.opened, parts.down)]
        mx.eval(self._across)

    def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
        whole, parts = self._whole, self._parts
        if not (whole.on and whole.late.on and x.shape[1] == 1):
            out: mx.array = self._plain(x, mask, cache)
            return out
        step, turn = cache.step, parts.rope.angles(cache.step.offset)
        if whole.launch.serves(x.shape[0], parts):
            return whole.launch(parts, cache.pool, x, step.table, step.positions, turn)
        return self._in_products(x[:, 0], cache, turn)[:, None]

    def _in_products(self, x: mx.array, cache: Any, turn: mx.array) -> mx.array:
        """The same for x [R, H]."""
        parts, step = self._parts, cache.step
        heads, out, opened, down = self._across
        product = mx.fast.rms_norm(x, parts.norms[0], parts.eps) @ heads
        keys, values = out.shape[0], out.shape[0] + parts.own * parts.rope.width
        q, k, v = self._whole.late.split(product, [keys, values])
        q, k = replace(q, turn=turn), replace(k, turn=turn)
        seen = step.ops.attend_heads(cache.pool, q, k, v, step.table, step.positions, parts.scale).flat
        middle = mx.addmm(x, seen, out)
        gate, up = mx.split(mx.fast.rms_norm(middle, parts.norms[1], parts.eps) @ opened, 2, axis=-1)
        return mx.addmm(middle, silu(gate) * up, down)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plain, name)


def parts_of(layer: Any, twin: Any) -> LayerParts | None:
    """The parts of a model's layer and of its twin, None where it is not of our kind."""
    if not isinstance(layer, Module) or not {"self_attn", "mlp", *NORMS} <= set(layer):
        return None
    attention, inner, norms = layer["self_attn"], layer["mlp"], [layer[name] for name in NORMS]
    linears = [attention.get(name) for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    linears += [inner.get(name) for name in ("gate_proj", "up_proj", "down_proj")]
    plain = all(type(one) is Linear and "bias" not in one and one.weight.dtype in HALVES for one in linears)
    rope = twin["self_attn"].get("rope")
    if not plain or type(rope) is not LateRope or not all(type(norm) is RMSNorm for norm in norms):
        return None
    if set(attention) != {"q_proj", "k_proj", "v_proj", "o_proj", "rope"} or norms[0].eps != norms[1].eps:
        return None
    if any(one.weight.shape[1] % BLOCK_OF_INPUTS for one in linears):
        return None
    return LayerParts(
        norms=(norms[0].weight, norms[1].weight),
        heads=twin["self_attn"]["q_proj"].joined,
        out=linears[3].weight,
        opened=twin["mlp"]["gate_proj"].joined,
        down=linears[6].weight,
        rope=rope,
        eps=float(norms[0].eps),
        scale=float(attention.scale),
        own=linears[1].weight.shape[0] // rope.width,
    )
