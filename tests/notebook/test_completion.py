"""Tab on a magic's line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mlx_notebook.notebook import extension
from mlx_notebook.notebook.completion import complete
from mlx_notebook.notebook.options import GENERATE, LOAD

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import InteractiveShell

    from mlx_notebook.gateway.gateway import Gateway
    from tests.notebook.conftest import Gate

VARIABLES = {"story": 1, "fox": "text", "print_it": print, "_hidden": 2}


@pytest.mark.parametrize(
    ("line", "token", "words"),
    [
        ("%%mlxgen --te", "--te", ["--temperature"]),
        ("%%mlxgen --temperature 0.7 --t", "--t", ["--top-p", "--top-k"]),
        ("%%mlxgen --stop a --st", "--st", ["--stop"]),
        ("%%mlxgen --view ", "", ["stream", "table", "quiet"]),
        ("%%mlxgen --view=st", "st", ["stream"]),
        ("%%mlxgen --sampling m", "m", ["model"]),
        ("%%mlxgen --raw=", "", ["true", "false"]),
        ("%%mlxgen --into ", "", ["fox", "story"]),
        ("%%mlxgen --system $f", "f", ["fox"]),
        ("%%mlxgen --logits-processors $p", "p", ["print_it"]),
        ("%%mlxgen --max-tokens ", "", []),
        ("%%mlxgen --json", "--json", ["--json-schema"]),
        ("%%mlxgen --adap", "--adap", []),
        ("%mlxload smollm2 --dtype b", "b", ["bfloat16"]),
        ("%mlxload smol", "smol", ["smollm2"]),
        ("%mlxstatus ", "", []),
    ],
)
def test_options_and_values(line: str, token: str, words: list[str]) -> None:
    assert complete(line, token, VARIABLES) == words


@pytest.mark.parametrize("line", ["x = --te", "%time --te", "%%mlxgenerate --te", "%%mlxgen", "print('%%mlxgen --te"])
def test_other_lines_are_not_ours(line: str) -> None:
    assert complete(line, "--te", VARIABLES) is None


def test_a_blank_completes_every_option_that_is_left() -> None:
    assert complete("%%mlxgen ", "", {}) == [option.flag for option in GENERATE.options]
    left = complete("%mlxload smollm2 --batch 4 ", "", {})
    assert left == [option.flag for option in LOAD.options if option.flag != "--batch"]


def test_names_and_numbers_come_from_what_there_is(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], gate: Gate
) -> None:
    del loaded
    over = scripted(name="one").submit("hi", max_tokens=1)
    live = scripted(gate.script, name="two").submit("hi")
    assert over.text
    assert complete("%%mlxgen --gateway ", "", {}) == ["one", "two"]
    assert complete("%mlxunload t", "t", {}) == ["two"]
    assert complete("%mlxcancel ", "", {}) == [str(live.id), "all"]
    assert {str(over.id), str(live.id)} <= set(complete("%mlxshow ", "", {}) or [])
    gate.opened.set()


def suggestions(shell: InteractiveShell, text: str) -> list[str]:
    return [completion.text for completion in shell.Completer.completions(text, len(text.splitlines()[0]))]


@pytest.mark.filterwarnings("ignore::IPython.core.completer.ProvisionalCompleterWarning")
def test_the_shell_asks_us_and_after_unloading_no_more(loaded: InteractiveShell) -> None:
    loaded.user_ns["temp_file"] = 1
    assert suggestions(loaded, "%%mlxgen --tem") == ["--temperature"]
    assert suggestions(loaded, "%%mlxgen --tem\nthe prompt") == ["--temperature"]
    assert "temp_file" in suggestions(loaded, "tem")
    extension.unload_ipython_extension(loaded)
    assert "--temperature" not in suggestions(loaded, "%%mlxgen --tem")


@pytest.mark.filterwarnings("ignore::IPython.core.completer.ProvisionalCompleterWarning")
def test_the_magics_names_complete_too(loaded: InteractiveShell) -> None:
    assert set(suggestions(loaded, "%mlx")) >= {"%mlxload", "%mlxstatus", "%%mlxgen"}
