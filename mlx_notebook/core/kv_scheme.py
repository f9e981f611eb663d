"""How keys and values are stored: natively, or quantised in groups along the head (never along tokens).

A scheme is the same for every row of a gateway; with a delayed start each row converts when it has so
many tokens, so that rows before and after it live side by side. Layers without keys and values
(recurrent, convolution) are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
DEFAULT_GROUP = 64


@dataclass(frozen=True, slots=True)
class LayerScheme:
    """Affine quantisation of one layer: bits a value, values a group (each with a scale and a bias)."""

    bits: int
    group_size: int = DEFAULT_GROUP

    def bytes_per_value(self, scale_bytes: int = 4) -> float:
        """Bytes that one stored value takes, its share of scale and bias included."""
        return self.bits / 8 + 2 * scale_bytes / self.group_size


@dataclass(frozen=True, slots=True)
class KVScheme:
    """Storage of all layers.

    Attributes:
        everywhere: of every attention layer that `layers` does not name; None keeps them as they are.
        layers: (layer index, scheme) pairs, ascending.
        start: tokens that a row keeps unquantised before it converts.
    """

    everywhere: LayerScheme | None = None
    layers: tuple[tuple[int, LayerScheme], ...] = ()
    start: int = 0

    @property
    def native(self) -> bool:
        """Whether nothing is quantised."""
        return self.everywhere is None and not self.layers

    def of(self, layer: int) -> LayerScheme | None:
        """The scheme of a layer, None where it stays as it is."""
        return dict(self.layers).get(layer, self.everywhere)


def check_scheme(value: Any) -> KVScheme:
    """A scheme from what a user writes.

    Args:
        value: "native"; "4bit" or "8bit" (any of 2, 3, 4, 5, 6, 8 bits); a dictionary with `bits` and perhaps
            `group_size` and `start`; or per layer: a list of dictionaries with `layer`, `bits`, `group_size`
            (what a `kv_config.json` holds), or a dictionary with such a list under `layers` and a `start`.

    Raises:
        TypeError, ValueError: naming what is wrong and what it takes.
    """
    if isinstance(value, KVScheme):
        return value
    if isinstance(value, str):
        return _by_name(value)
    if isinstance(value, Mapping):
        _only(value, ("bits", "group_size", "start", "layers"))
        start = _whole("kv start", value.get("start", 0), 0, 1 << 30)
        if "layers" in value:
            return KVScheme(_layer(value) if "bits" in value else None, _layers(value["layers"]), start)
        return KVScheme(_layer(value), (), start)
    if isinstance(value, Sequence):
        return KVScheme(None, _layers(value))
    raise TypeError(
        f"kv={value!r}: 'native', '8bit', '4bit', a dictionary, or a list of layers, not {type(value).__name__}"
    )


def _by_name(name: str) -> KVScheme:
    if name == "native":
        return KVScheme()
    for bits in BITS:
        if name in (f"{bits}bit", str(bits)):
            return KVScheme(LayerScheme(bits))
    raise ValueError(f"kv={name!r}: 'native' or one of {', '.join(repr(f'{bits}bit') for bits in BITS)}")


def _layers(value: Any) -> tuple[tuple[int, LayerScheme], ...]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise TypeError(
            f"kv layers: a list of dictionaries with layer, bits and group_size, not {type(value).__name__}"
        )
    found: dict[int, LayerScheme] = {}
    for item in value:
        if not isinstance(item, Mapping):
            raise TypeError(
                f"kv layers: each is a dictionary with layer, bits and group_size, not {type(item).__name__}"
            )
        _only(item, ("layer", "bits", "group_size"))
        layer = _whole("kv layer", item.get("layer"), 0, 100_000)
        if layer in found:
            raise ValueError(f"kv layers: layer {layer} is named twice")
        found[layer] = _layer(item)
    return tuple(sorted(found.items(), key=lambda pair: pair[0]))


def _layer(value: Mapping[str, Any]) -> LayerScheme:
    bits, group = value.get("bits"), value.get("group_size", DEFAULT_GROUP)
    if bits not in BITS or isinstance(bits, bool):
        raise ValueError(f"kv bits={bits!r}: one of {', '.join(map(str, BITS))}")
    if group not in GROUP_SIZES or isinstance(group, bool):
        raise ValueError(f"kv group_size={group!r}: one of {', '.join(map(str, GROUP_SIZES))}")
    return LayerScheme(int(bits), int(group))


def _only(value: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in value:
        if name not in known:
            raise ValueError(f"kv: unknown key {name!r}; known are {', '.join(known)}")


def _whole(name: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}={value!r}: a whole number from {low}")
    number = int(value.__index__())
    if not low <= number <= high:
        raise ValueError(f"{name}={value!r} is out of range: from {low} to {high}")
    return number
