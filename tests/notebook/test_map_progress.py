"""`map` in a cell: a line that updates itself in a page, and only the closing line in tools that have no reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mlx_notebook.gateway.frames.progress import Silent, State, Terminal
from mlx_notebook.notebook.map_progress import PageMeter, meter_of
from mlx_notebook.notebook.settings import Mode

if TYPE_CHECKING:
    from collections.abc import Callable

    from IPython.core.interactiveshell import InteractiveShell

    from mlx_notebook.gateway.gateway import Gateway
    from tests.notebook.conftest import Displayed


def test_each_mode_s_meter() -> None:
    assert isinstance(meter_of(Mode.WIDGET), PageMeter)
    assert isinstance(meter_of(Mode.PRINT), Terminal)
    assert isinstance(meter_of(Mode.BATCH), Silent)


def test_a_page_has_one_output_that_ends_as_the_closing_line(displayed: Displayed) -> None:
    meter = PageMeter()
    meter.show(State(1, 2, 0, 1, None, None))
    meter.close("2 complete")
    first, last = displayed.outputs
    assert first["transient"] == last["transient"]
    assert 'value="1"' in first["data"]["text/html"]
    assert last["data"]["text/plain"] == "2 complete"
    assert "progress" not in last["data"]["text/html"]


@pytest.mark.parametrize("mode", ["batch", "widget"])
def test_map_in_a_cell(
    loaded: InteractiveShell,
    scripted: Callable[..., Gateway],
    displayed: Displayed,
    capsys: pytest.CaptureFixture[str],
    mode: str,
) -> None:
    loaded.user_ns["gw"] = scripted()
    loaded.run_cell(f"%config MlxNotebook.mode = '{mode}'")
    result = loaded.run_cell("frame = gw.map(['a', 'b'], max_tokens=2)")
    assert result.success
    line = "0 complete, 2 cut at max_tokens"
    if mode == "batch":
        assert capsys.readouterr().out == line + "\n"
        assert displayed.outputs == []
    else:
        assert capsys.readouterr().out == ""
        assert displayed.texts[-1] == line
