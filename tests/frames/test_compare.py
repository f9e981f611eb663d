"""`compare`: settings side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

import mlx_notebook as mn
from mlx_notebook.core.seeds import row_seed
from mlx_notebook.errors import RowsFailed
from tests.frames.echo import text_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mlx_notebook.gateway.gateway import Gateway


def test_a_long_frame(gw: Gateway) -> None:
    frame = gw.compare(["a", "b"], {"short": {"max_tokens": 1}, "long": {"max_tokens": 3}}, seed=2)
    assert frame.setting.tolist() == ["short", "long", "short", "long"]
    assert frame.prompt.tolist() == ["a", "a", "b", "b"]
    assert frame.index.tolist() == [0, 0, 1, 1]
    assert frame.generated_tokens.tolist() == [1, 3, 1, 3]
    assert frame.text.tolist()[3] == text_of("b", row_seed(2, 1), 3)


def test_the_same_seed_under_every_setting(gw: Gateway) -> None:
    frame = gw.compare(["a", "b"], {"x": {}, "y": {"temperature": 1.0}}, n=2, max_tokens=1)
    assert frame["sample"].tolist() == [0, 1] * 4
    seeds = frame.groupby([frame.index, "sample"]).seed.nunique()
    assert (seeds == 1).all()
    assert frame.seed.nunique() == 4


def test_gateways_as_settings(echo: Callable[..., Gateway]) -> None:
    one, other = echo(name="one"), echo(name="other", context=30)
    frame = one.compare(["x" * 50], {"big": one, "small": other}, max_tokens=2)
    assert frame.error.isna().tolist() == [True, False]
    assert "context is 30" in frame.error.tolist()[1]
    assert one.stats().submitted == 1


def test_a_template_and_a_series(gw: Gateway) -> None:
    df = pd.DataFrame({"word": ["a", "b"]}, index=["p", "q"])
    tokens = pd.Series([1, 2], index=["p", "q"])
    frame = gw.compare(df, {"x": {}, "y": {"max_tokens": 5}}, prompt="Say {word}", max_tokens=tokens)
    assert frame.index.tolist() == ["p", "p", "q", "q"]
    assert frame.generated_tokens.tolist() == [1, 5, 2, 5], "a setting's own option wins"


def test_module_level(gw: Gateway) -> None:
    assert len(mn.compare(["a"], {"x": {"max_tokens": 1}})) == 1
    assert gw.last_map is not None


WRONG: list[tuple[Any, type[Exception], str]] = [
    ({}, ValueError, "none to compare"),
    ([{"a": 1}], TypeError, "not list"),
    ({"x": 3}, TypeError, r"settings\['x'\]: a dictionary of options or a gateway, not int"),
    ({1: {}}, TypeError, "each name is a text"),
    ({"x": {"n": 2}}, ValueError, "n holds for all settings"),
    ({"x": {"temprature": 2}}, TypeError, "did you mean 'temperature'"),
]


@pytest.mark.parametrize(("settings", "kind", "message"), WRONG)
def test_wrong_settings_are_named(gw: Gateway, settings: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        gw.compare(["a"], settings)
    assert gw.stats().submitted == 0


def test_the_setting_with_the_wrong_option_is_named(gw: Gateway) -> None:
    with pytest.raises(ValueError, match="max_tokens=0") as caught:
        gw.compare(["a"], {"fine": {}, "odd": {"max_tokens": 0}})
    assert caught.value.__notes__ == ["in settings['odd']"]


def test_errors_raise(gw: Gateway) -> None:
    with pytest.raises(RowsFailed, match="row 1, x: the prompt is missing") as caught:
        gw.compare(["a", None], {"x": {}}, errors="raise")
    assert caught.value.frame is not None
    with pytest.raises(RowsFailed, match="made to fail"):
        gw.compare(["FAIL"], {"x": {}}, errors="raise")
