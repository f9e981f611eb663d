"""Cells whose answers have a shape, over a small real model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.errors import GrammarError
from mlx_notebook.gateway.gateway import Gateway
from tests.small_models import small

if TYPE_CHECKING:
    from collections.abc import Iterator

    from IPython.core.interactiveshell import InteractiveShell

SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}


@pytest.fixture
def ready(loaded: InteractiveShell) -> Iterator[InteractiveShell]:
    with Gateway.from_loaded(*small("llama"), batch=4):
        yield loaded


def gen(shell: InteractiveShell, line: str) -> Any:
    return shell.run_cell_magic("mlxgen", line, "hello")


def test_every_shape_works_in_a_cell(ready: InteractiveShell) -> None:
    ready.push({"schema": SCHEMA, "lark": 'start: "x" | "y"', "words": ["up", "down"]})
    assert gen(ready, "--json-schema $schema --into answer").result().parsed in ({"a": True}, {"a": False})
    assert ready.user_ns["answer"].parsed == ready.user_ns["answer"].result().parsed
    assert gen(ready, "--choices yes,no").result().parsed in ("yes", "no")
    assert gen(ready, "--choices $words").result().parsed in ("up", "down")
    assert gen(ready, "--regex '[ab]{3}'").result().parsed.strip("ab") == ""
    assert gen(ready, "--grammar $lark").result().parsed in ("x", "y")
    several = gen(ready, "--choices yes,no --n 3 --temperature 1")
    assert all(result.parsed in ("yes", "no") for result in several.results())


def test_a_wrong_shape_is_said_in_one_line_and_submits_nothing(ready: InteractiveShell) -> None:
    from mlx_notebook.gateway.registry import registry

    before = len(list(registry.handles()))
    with pytest.raises(GrammarError, match="regex at column 1") as caught:
        gen(ready, "--regex '('")
    assert len(caught.value._render_traceback_()) == 1  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="an answer has one shape"):
        gen(ready, "--regex a --choices a,b")
    assert len(list(registry.handles())) == before
