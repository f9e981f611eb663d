"""Loading, loading twice, reloading and unloading: everything that came goes again."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from mlx_notebook.gateway.hooks import hooks
from mlx_notebook.gateway.registry import registry
from mlx_notebook.notebook.magics import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest
    from IPython.core.interactiveshell import InteractiveShell

    from mlx_notebook.gateway.gateway import Gateway
    from tests.notebook.conftest import Gate


def state(shell: InteractiveShell) -> dict[str, Any]:
    """What loading could touch."""
    assert shell.display_formatter is not None
    return {
        "magics": {kind: sorted(shell.magics_manager.magics[kind]) for kind in ("line", "cell")},
        "registry": sorted(shell.magics_manager.registry),
        "matchers": list(shell.Completer.custom_matchers),
        "configurables": list(shell.configurables),
        "events": {name: list(called) for name, called in shell.events.callbacks.items()},
        "transformers": [*shell.input_transformers_cleanup, *shell.input_transformers_post, *shell.ast_transformers],
        "formatters": {
            kind: (dict(formatter.type_printers), dict(formatter.deferred_printers))
            for kind, formatter in shell.display_formatter.formatters.items()
        },
        "exceptions": shell.custom_exceptions,
        "threads": set(threading.enumerate()),
    }


def run(shell: InteractiveShell, code: str) -> bool:
    return bool(shell.run_cell(code).success)


def test_loading_brings_the_magics_and_hooks_nothing_else(shell: InteractiveShell) -> None:
    run(shell, "%unload_ext mlx_notebook")  # IPython itself loads these magics when they are first used
    before = state(shell)
    assert run(shell, "%load_ext mlx_notebook")
    during = state(shell)
    new = {kind: set(during["magics"][kind]) - set(before["magics"][kind]) for kind in ("line", "cell")}
    assert new == {
        "line": {
            *("mlxload", "mlxstatus", "mlxshow", "mlxcancel", "mlxunload", "mlxmodels"),
            *("mlxchat", "mlxdash", "mlxtrace", "mlxwhy"),
        },
        "cell": {"mlxgen"},
    }
    for name in ("events", "transformers", "formatters", "exceptions", "threads"):
        assert during[name] == before[name], name
    assert run(shell, "%unload_ext mlx_notebook")
    assert state(shell) == before
    assert (hooks.execution, hooks.interrupted, hooks.show) == (None, None, None)


def test_every_magic_has_a_help_page(loaded: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, name in NAMES:
        percent = "%%" if kind == "cell" else "%"
        assert run(loaded, f"{percent}{name}?")
        page = capsys.readouterr().out
        assert page.startswith("Docstring")
        assert f"\n{percent}{name}" in page.replace("\n    ", "\n")


def test_loading_twice_is_loading_once(shell: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    import mlx_notebook

    assert run(shell, "%load_ext mlx_notebook")
    during = state(shell)
    assert run(shell, "%load_ext mlx_notebook")
    mlx_notebook.load_ipython_extension(shell)
    assert state(shell) == during
    assert "already loaded" in capsys.readouterr().out
    assert run(shell, "%unload_ext mlx_notebook")
    mlx_notebook.unload_ipython_extension(shell)


def test_after_unloading_the_magics_are_unknown(loaded: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(loaded, "%load_ext mlx_notebook\n%unload_ext mlx_notebook")
    for line in ("%mlxstatus", "%%mlxgen\nhi"):
        assert not run(loaded, line)
        assert "not found" in capsys.readouterr().err
    assert not run(loaded, "%config MlxNotebook.mode")


def test_unloading_closes_gateways_and_settles_their_rows(
    loaded: InteractiveShell, scripted: Callable[..., Gateway], gate: Gate
) -> None:
    gateway = scripted(gate.script)
    handle = gateway.submit("hi")
    gate.reached.wait()
    handle.add_done_callback(lambda _handle: gate.opened.set())
    assert run(loaded, "%load_ext mlx_notebook\n%unload_ext mlx_notebook")
    assert gateway.closed
    assert handle.cancelled()
    assert registry.gateways() == {}


def test_reloading_with_a_live_gateway(
    loaded: InteractiveShell,
    scripted: Callable[..., Gateway],
    gate: Gate,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(loaded, "%load_ext mlx_notebook")
    handle = scripted(gate.script).submit("hi")
    gate.reached.wait()
    handle.add_done_callback(lambda _handle: gate.opened.set())
    assert run(loaded, "%reload_ext mlx_notebook")
    assert handle.cancelled()
    scripted()
    assert run(loaded, "%%mlxgen --max-tokens 4\nhi")
    assert capsys.readouterr().out.endswith("The fox ran.\n")
    assert [m.__name__ for m in loaded.Completer.custom_matchers].count("mlx_notebook_matcher") == 1
    run(loaded, "%unload_ext mlx_notebook")


def test_the_mode_is_a_setting(loaded: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(loaded, "%config MlxNotebook")
    assert "MlxNotebook.mode=<Enum>" in capsys.readouterr().out
    assert loaded.run_cell("%config MlxNotebook.mode").result == "auto"
    run(loaded, "%config MlxNotebook.mode = 'loud'")
    assert loaded.run_cell("%config MlxNotebook.mode").result == "auto"
    run(loaded, "%config MlxNotebook.mode = 'batch'")
    assert loaded.run_cell("%config MlxNotebook.mode").result == "batch"
