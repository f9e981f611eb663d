"""`%mlxload` and `%mlxunload`: names in use, what is said, the bar, and loads that fail."""

from __future__ import annotations

import _thread
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from IPython.core.error import UsageError

from mlx_notebook.engine.backend import ScriptedBackend, scripted_texts
from mlx_notebook.errors import ModelLoadError, ModelNotFound, OverBudget
from mlx_notebook.gateway import gateway as gateway_module
from mlx_notebook.gateway.gateway import Gateway
from mlx_notebook.gateway.lease import device_lease
from mlx_notebook.gateway.loading import ModelFacts
from mlx_notebook.gateway.registry import registry
from mlx_notebook.gateway.settings import check_settings
from mlx_notebook.models import backend_check, blas
from mlx_notebook.models.blas import BlasStatus
from mlx_notebook.notebook import loading
from mlx_notebook.notebook.loading import LoadBar
from tests.gateway.fakes import in_thread, wait_for
from tests.notebook.conftest import WORDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from IPython.core.interactiveshell import ExecutionResult, InteractiveShell

    from mlx_notebook.gateway.thread import Loading
    from tests.notebook.conftest import Gate

FACTS = ModelFacts(
    source="a toy", revision="0123456789abcdef", weight_bytes=2_000_000, recommended_sampling={"temperature": 0.2}
)


class Toys:
    """Stands in for models: what a load of each name does, and which were loaded, in order."""

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.facts = FACTS
        self.script: Callable[[int, int], str] = scripted_texts(WORDS)
        self.fails: dict[str, Exception] = {}
        self.during: Callable[[Loading], None] = lambda _loading: None

    def resolve(self, model: str, **_how: Any) -> None:
        if model == "nowhere":
            raise ModelNotFound("No model is known as 'nowhere'.", name=model)

    def check(self, leaving: Sequence[Gateway]) -> None:
        assert not any(gateway.closed for gateway in leaving)

    def load(self, model: str) -> Callable[[Loading], tuple[ScriptedBackend, ModelFacts]]:
        def load(loading: Loading) -> tuple[ScriptedBackend, ModelFacts]:
            self.loads.append(model)
            self.during(loading)
            if model in self.fails:
                raise self.fails[model]
            return ScriptedBackend(script=self.script), replace(self.facts)

        return load


@pytest.fixture
def toys(loaded: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> Toys:
    """Every name is a toy model: the gateways are real, their engine threads play scripts."""
    del loaded
    made = Toys()

    class ToyGateway(Gateway):
        def __init__(self, model: str, *, replace: bool = False, progress: Any = None, **settings: Any) -> None:
            self._start(made.load(model), check_settings(**settings), model, progress, takes_over=replace)

    monkeypatch.setattr(gateway_module, "Gateway", ToyGateway)
    monkeypatch.setattr(loading, "resolve", made.resolve)
    monkeypatch.setattr(loading, "NamedModel", lambda *_how: made)
    monkeypatch.setattr(blas, "preload_blas", lambda: BlasStatus("not-needed"))
    return made


def run(shell: InteractiveShell, code: str, cell: str | None = None) -> ExecutionResult:
    result: ExecutionResult = shell.run_cell(code, store_history=True, cell_id=cell)
    return result


@pytest.mark.usefixtures("toys")
def test_a_load_says_what_it_brought_and_is_current(
    loaded: InteractiveShell, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(loaded, "%mlxload models/fox.gguf --into gw --kv-budget 4MB").success
    assert capsys.readouterr().out.splitlines() == [
        "fox is loaded and current (models/fox.gguf, none).",
        "  source    a toy",
        "  revision  0123456789ab",
        "  memory    2.0 MB of weights; rows may take any amount",
        "  sampling  the model recommends temperature=0.2 (--sampling model takes it)",
    ]
    assert registry.current() is loaded.user_ns["gw"]


def test_a_model_stays_though_no_variable_holds_it(loaded: InteractiveShell, toys: Toys) -> None:
    run(loaded, "%mlxload fox")
    import gc

    gc.collect()
    assert run(loaded, "%%mlxgen --max-tokens 2\nhi").success
    assert toys.loads == ["fox"]


@pytest.mark.parametrize("state", ["missing", "too-late"])
@pytest.mark.usefixtures("toys")
def test_a_slow_blas_is_named_with_what_mends_it(
    loaded: InteractiveShell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: Any
) -> None:
    monkeypatch.setattr(blas, "preload_blas", lambda: BlasStatus(state, advice="sudo mend-it"))
    run(loaded, "%mlxload fox")
    assert "  slow      MLX computes with its slow BLAS: sudo mend-it" in capsys.readouterr().out


@pytest.mark.parametrize("only_float32", [True, False])
def test_a_type_that_is_slow_here_is_named_with_what_mends_it(
    loaded: InteractiveShell,
    toys: Toys,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    only_float32: bool,
) -> None:
    monkeypatch.setattr(backend_check, "only_float32_is_fast", lambda: only_float32)
    toys.facts = replace(FACTS, dtype="4bit")
    run(loaded, "%mlxload fox --dtype 4bit")
    said = "  slow      4bit runs slower than float32 on a CPU: --dtype float32" in capsys.readouterr().out
    assert said is only_float32


def test_a_name_in_use_serves_until_the_new_one_is_loaded(loaded: InteractiveShell, toys: Toys) -> None:
    run(loaded, "%mlxload fox --into old")
    old = loaded.user_ns["old"]
    seen: list[bool] = []
    toys.during = lambda _loading: seen.append(old.closed)
    run(loaded, "%mlxload fox --into new")
    new = loaded.user_ns["new"]
    assert (seen, old.closed, new.name) == ([False], True, "fox")
    assert registry.gateways() == {"fox": new}
    assert run(loaded, "%%mlxgen --max-tokens 1 --view quiet\nhi").success


def test_replace_closes_the_old_one_first(loaded: InteractiveShell, toys: Toys) -> None:
    run(loaded, "%mlxload fox --into old")
    old = loaded.user_ns["old"]
    seen: list[bool] = []
    toys.during = lambda _loading: seen.append(old.closed)
    run(loaded, "%mlxload fox --replace")
    assert seen == [True]
    assert list(registry.gateways()) == ["fox"]


def test_replace_with_what_cannot_be_loaded_leaves_the_old_one(
    loaded: InteractiveShell,
    scripted: Callable[..., Gateway],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(blas, "preload_blas", lambda: BlasStatus("not-needed"))
    old = scripted(name="fox")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    result = run(loaded, f"%mlxload {tmp_path} --name fox --replace")
    assert type(result.error_in_exec) is ModelLoadError
    assert "holds no tokenizer" in capsys.readouterr().out
    assert not old.closed
    assert old.generate("abc", max_tokens=2).generated_tokens == 2


@pytest.mark.usefixtures("toys")
def test_other_names_live_side_by_side(loaded: InteractiveShell) -> None:
    run(loaded, "%mlxload fox")
    run(loaded, "%mlxload fox --name second")
    run(loaded, "%mlxload hen", "same cell")
    run(loaded, "%mlxload owl", "same cell")
    assert list(registry.gateways()) == ["fox", "second", "hen", "owl"]


def test_never_while_rows_run(
    loaded: InteractiveShell, toys: Toys, gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    toys.script = gate.script
    run(loaded, "%mlxload fox --into gw")
    handle = loaded.user_ns["gw"].submit("hi", max_tokens=4)
    for line in ("%mlxload fox", "%mlxload fox --replace", "%mlxload hen --name fox"):
        capsys.readouterr()
        assert type(run(loaded, line).error_in_exec) is UsageError
        assert f"request {handle.id} still runs under the name 'fox'" in capsys.readouterr().err
    assert toys.loads == ["fox"]
    gate.opened.set()
    assert handle.text


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("%mlxload nowhere", (ModelNotFound, "No model is known as 'nowhere'")),
        ("%mlxload broken", (ValueError, "truncated")),
        ("%mlxload fox --batch 0", (ValueError, "batch=0")),
        ("%mlxload fox --kv-budget lots", (ValueError, "kv_budget='lots'")),
        ("%mlxload fox --dtype int3", (ValueError, "dtype='int3'")),
        ("%mlxload fox --kv 7bit", (ValueError, "kv='7bit': 'native' or one of")),
        ("%mlxload fox --replace --prompt-cache many", (ValueError, "prompt_cache='many'")),
        ("%mlxload nowhere --name fox --replace", (ModelNotFound, "No model is known as 'nowhere'")),
    ],
)
def test_a_load_that_fails_is_one_line_and_leaves_what_runs(
    loaded: InteractiveShell, toys: Toys, capsys: pytest.CaptureFixture[str], line: str, error: tuple[type, str]
) -> None:
    kind, said = error
    toys.fails["broken"] = ValueError("the file is truncated")
    run(loaded, "%mlxload fox --into gw", "one cell")
    capsys.readouterr()
    result = run(loaded, line, "one cell")
    assert type(result.error_in_exec) is kind
    shown = capsys.readouterr().out.strip()
    assert said in shown
    assert "\n" not in shown
    assert registry.current() is loaded.user_ns["gw"]
    assert run(loaded, "%%mlxgen --max-tokens 1 --view quiet\nhi").success


def test_too_little_memory_says_how_to_make_room(
    loaded: InteractiveShell, toys: Toys, capsys: pytest.CaptureFixture[str]
) -> None:
    toys.fails["whale"] = OverBudget("whale needs 9 GB and 1 GB is free.", needed=9, budget=1)
    run(loaded, "%mlxload fox")
    result = run(loaded, "%mlxload whale")
    assert isinstance(result.error_in_exec, OverBudget)
    assert result.error_in_exec.needed == 9
    assert "Loaded now: fox. --replace closes" in capsys.readouterr().out


def test_an_interrupt_gives_the_load_up(
    loaded: InteractiveShell, toys: Toys, capsys: pytest.CaptureFixture[str]
) -> None:
    run(loaded, "%mlxload fox --into gw")
    capsys.readouterr()

    def wait_to_be_stopped(loading: Loading) -> None:
        _thread.interrupt_main()
        while not loading.stop.wait(0.5):
            pass
        loading.check()

    toys.during = wait_to_be_stopped
    result = run(loaded, "%mlxload hen")
    assert isinstance(result.error_in_exec, KeyboardInterrupt)
    assert capsys.readouterr().out.strip() == "KeyboardInterrupt"
    assert registry.gateways() == {"fox": loaded.user_ns["gw"]}


def test_a_waiting_load_says_for_whom(
    loaded: InteractiveShell, toys: Toys, gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    toys.script = gate.script
    run(loaded, "%mlxload fox --into gw")
    handles = [loaded.user_ns["gw"].submit("hi", max_tokens=4) for _ in range(2)]
    gate.reached.wait()
    capsys.readouterr()
    said: list[str] = []

    def open_once_the_load_waits() -> None:
        wait_for(lambda: device_lease().waiting > 0)
        said.extend(capsys.readouterr().out.splitlines())
        gate.opened.set()

    opening = in_thread(open_once_the_load_waits)
    run(loaded, "%mlxload hen")
    opening.result()
    first, second = handles
    assert said == [f"The load begins when requests {first.id} and {second.id} are over."]
    assert capsys.readouterr().out.startswith("hen is loaded")
    assert all(handle.done() for handle in handles)
    run(loaded, "%mlxload owl")
    assert capsys.readouterr().out.startswith("owl is loaded")


# ---------------------------------------------------------------- the bar


class Terminal:
    """A standard output that says it is one."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.written: list[str] = []

    def write(self, text: str) -> int:
        self.written.append(text)
        return len(text)

    def flush(self) -> None: ...
    def isatty(self) -> bool:
        return True


def test_the_bar_grows_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(loading, "DRAW_S", 0.0)
    bar = LoadBar("fox", shown=True)
    bar("reading \x1b[2Jweights", 0.5)
    bar("checking", None)
    bar.clear()
    first, second, *wipe = terminal.written
    assert first == "\rfox: reading [2Jweights [############............]  50%"
    assert second.startswith("\rfox: checking ...")
    assert len(second) == len(first)
    assert "".join(wipe) == "\r" + " " * (len(first) - 1) + "\r"


def test_no_bar_where_nobody_looks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    LoadBar("fox", shown=True)("reading", 0.5)  # captured: no terminal
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    bar = LoadBar("fox", shown=False)
    bar("reading", 0.5)
    bar.clear()
    assert terminal.written == []
    assert capsys.readouterr().out == ""


# ---------------------------------------------------------------- %mlxunload


@pytest.mark.usefixtures("toys")
def test_unload_the_current_and_a_named_one(loaded: InteractiveShell, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("fox", "hen", "owl"):
        run(loaded, f"%mlxload {name}")
    capsys.readouterr()
    run(loaded, "%mlxunload")
    assert capsys.readouterr().out.splitlines() == ["owl is closed.", "Current is now hen."]
    loaded.user_ns["gw"] = registry.gateways()["fox"]
    run(loaded, "%mlxunload $gw")
    assert capsys.readouterr().out.splitlines() == ["fox is closed.", "Current is now hen."]
    run(loaded, "%mlxunload")
    assert capsys.readouterr().out == "hen is closed.\n"
    assert type(run(loaded, "%mlxunload").error_in_exec) is UsageError
    assert "no model is loaded" in capsys.readouterr().err
    assert not run(loaded, "%mlxunload fox").success
    assert "there is no gateway 'fox', nor any other" in capsys.readouterr().err


def test_unload_ends_what_runs_and_says_so(
    loaded: InteractiveShell, toys: Toys, gate: Gate, capsys: pytest.CaptureFixture[str]
) -> None:
    toys.script = gate.script
    run(loaded, "%mlxload fox --into gw")
    handle = loaded.user_ns["gw"].submit("hi")
    gate.reached.wait()
    capsys.readouterr()
    handle.add_done_callback(lambda _handle: gate.opened.set())  # the scripted engine cannot be left inside a token
    run(loaded, "%mlxunload")
    assert capsys.readouterr().out == f"fox is closed; request {handle.id} ended with it.\n"
    assert handle.cancelled()
