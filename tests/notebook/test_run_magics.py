"""`%mlxdash`, `%mlxtrace` and `%mlxwhy`: what each form of them displays, writes or refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from IPython.core.error import UsageError

import mlx_notebook as mn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from IPython.core.interactiveshell import InteractiveShell

    from mlx_notebook.gateway.gateway import Gateway
    from mlx_notebook.gateway.handle import Handle
    from tests.notebook.conftest import Displayed


@pytest.fixture
def gw(loaded: InteractiveShell, scripted: Callable[..., Gateway]) -> Gateway:
    gateway = scripted(name="toy")
    loaded.user_ns["gw"] = gateway
    return gateway


@pytest.fixture
def handles(gw: Gateway, loaded: InteractiveShell) -> list[Handle]:
    rows = [gw.submit(f"prompt {place}", max_tokens=3) for place in range(4)]
    for row in rows:
        row.result()
    gw.wait_idle()
    loaded.user_ns["h"] = rows[1]
    return rows


@pytest.mark.parametrize("line", ["", "toy", "$gw"])
@pytest.mark.usefixtures("handles")
def test_the_dashboard_of_a_gateway(loaded: InteractiveShell, displayed: Displayed, line: str) -> None:
    loaded.run_line_magic("mlxdash", line)
    (text,) = displayed.texts
    assert text == "dashboard of toy (scripted): 4 requests: 4 finished"
    assert "prompt 2" in displayed.outputs[0]["data"]["text/html"]


@pytest.mark.usefixtures("handles")
def test_the_dashboard_of_another_gateway(
    loaded: InteractiveShell, displayed: Displayed, scripted: Callable[..., Gateway]
) -> None:
    scripted(name="newer")
    loaded.run_line_magic("mlxdash", "toy")
    loaded.run_line_magic("mlxdash", "")
    assert [text.split(":")[0] for text in displayed.texts] == [
        "dashboard of toy (scripted)",
        "dashboard of newer (scripted)",
    ]


@pytest.mark.parametrize(("line", "shown"), [("", 4), ("--last 2", 2)])
@pytest.mark.usefixtures("handles")
def test_the_timeline_of_all_or_the_last(loaded: InteractiveShell, displayed: Displayed, line: str, shown: int) -> None:
    loaded.run_line_magic("mlxtrace", line)
    assert displayed.texts == [f"timeline of toy (scripted): {shown} requests: {shown} finished"]


@pytest.mark.parametrize("by", ["number", "object"])
def test_the_timeline_of_one_request_selects_it(
    loaded: InteractiveShell, displayed: Displayed, handles: list[Handle], by: str
) -> None:
    loaded.run_line_magic("mlxtrace", str(handles[1].id) if by == "number" else "$h")
    (output,) = displayed.outputs
    assert output["data"]["text/plain"] == "timeline of toy (scripted): 4 requests: 4 finished"
    assert handles[1].text in output["data"]["text/html"]  # the text of a row that is selected stands in the picture


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.usefixtures("displayed")
def test_the_whole_log_is_saved(loaded: InteractiveShell, handles: list[Handle], tmp_path: Path, text: bool) -> None:
    file = tmp_path / "run.json"
    loaded.run_line_magic("mlxtrace", f"--save {file}{' --text' if text else ''}")
    trace = mn.load_trace(file)
    assert list(trace.recording.requests) == [handle.id for handle in handles]
    assert trace.with_text is text


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ID --save FILE", "--save writes the whole log, so leave the request"),
        ("$h --save FILE", "--save writes the whole log, so leave the request"),
        ("--last 3 --save FILE", "--save writes the whole log, so leave --last 3 out"),
        ("ID --last 3", "not both"),
        ("--text", "--text goes with --save"),
        ("--last 0", "a whole number from 1"),
        ("0", "there is no request 0"),
        ("fox", "takes the number of a request"),
    ],
)
def test_a_trace_that_cannot_be_had_is_refused_by_name(
    loaded: InteractiveShell, handles: list[Handle], tmp_path: Path, line: str, says: str
) -> None:
    file = tmp_path / "run.json"
    line = line.replace("ID", str(handles[0].id)).replace("FILE", str(file))
    with pytest.raises(UsageError, match=says):
        loaded.run_line_magic("mlxtrace", line)
    assert not file.exists()


@pytest.mark.parametrize("by", ["number", "object", "nothing"])
def test_why(
    loaded: InteractiveShell,
    displayed: Displayed,
    capsys: pytest.CaptureFixture[str],
    handles: list[Handle],
    by: str,
) -> None:
    meant = handles[-1] if by == "nothing" else handles[1]
    loaded.run_line_magic("mlxwhy", {"number": str(meant.id), "object": "$h", "nothing": ""}[by])
    said = "\n".join([*displayed.texts, capsys.readouterr().out])
    assert f"request {meant.id}" in said
    assert "It was cut at max_tokens (3)." in said


@pytest.mark.parametrize(("line", "says"), [("$gw", "takes the number"), ("0", "no request 0"), ("$x", r"\$x")])
@pytest.mark.usefixtures("handles")
def test_why_of_nothing(loaded: InteractiveShell, line: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        loaded.run_line_magic("mlxwhy", line)
