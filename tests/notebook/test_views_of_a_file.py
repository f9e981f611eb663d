"""Each view of a run that was read from a file, with no gateway there any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import mlx_notebook as mn
from mlx_notebook.engine.backend import ScriptedBackend, scripted_texts
from mlx_notebook.gateway.gateway import Gateway
from tests.notebook.streaming import tell

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mlx_notebook.trace.trace import Trace
    from tests.notebook.conftest import Displayed
    from tests.notebook.streaming import Wire


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Trace]:
    """Runs two requests, saves, and reads back: one that ended, and one that was cut short by the saving."""

    def made(*, text: bool) -> Trace:
        with Gateway.from_backend(ScriptedBackend(script=scripted_texts(["A", " <b>", " fox"])), name="toy") as gw:
            gw.submit("first prompt", max_tokens=3, logprobs=0).result()
            gw.pause()
            gw.submit("second prompt", max_tokens=9)
            gw.step(3)
            return mn.load_trace(gw.save_trace(tmp_path / "run.json.gz", text=text))

    return made


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize("view", ["dashboard", "timeline"])
def test_dashboard_and_timeline(load: Callable[..., Trace], displayed: Displayed, view: str, text: bool) -> None:
    trace = load(text=text)
    shown = getattr(trace, view)()
    shown.display()
    (output,) = displayed.outputs
    assert output["data"]["text/plain"] == f"{view} of toy: 2 requests: 1 writing, 1 finished"
    for page in (output["data"]["text/html"], shown.to_html()):
        assert ("first prompt" in page) is text


def test_streams_show_the_words(load: Callable[..., Trace], displayed: Displayed) -> None:
    trace = load(text=True)
    first, second = trace.recording.requests
    trace.stream().display()
    trace.stream(first).display()
    assert list(dict.fromkeys(displayed.texts)) == [  # the publisher freezes each, with the same text
        "1. first prompt\nA <b> fox\n\n2. second prompt\nA <b>\n[answering, 2 tokens so far]",
        "A <b> fox",
    ]
    assert "A &lt;b&gt; fox" in trace.stream(first).to_html()
    assert trace.stream(second)._handles[0].cancel() is False


def test_a_stream_of_a_file_answers_its_page(load: Callable[..., Trace], wire: Wire) -> None:
    trace = load(text=True)
    view = trace.stream(next(iter(trace.recording.requests)))
    view.display()
    tell(view, kind="hello", page="p1")
    tell(view, kind="view", page="p1", view="v1", on=True)
    assert not view.tick()
    assert wire.snapshots()[-1]["rows"][0]["text"] == "A <b> fox"
    tell(view, kind="tokens", row=0, on=True, view="v1")
    view.tick()
    (told,) = [row["tok"] for message in wire.custom() for row in message.get("rows", []) if "tok" in row]
    assert told["texts"] == ["A", " <b>", " fox"]
    tell(view, kind="token", row=0, n=2)
    facts: Any = wire.custom()[-1]["facts"]
    assert facts["text"] == " <b>"
    tell(view, kind="token", row=0, n=77)
    assert wire.custom()[-1]["facts"] is None


def test_where_there_is_no_text_the_way_to_it_is_said(load: Callable[..., Trace]) -> None:
    trace = load(text=False)
    for ids in ((), tuple(trace.recording.requests)):
        with pytest.raises(ValueError, match="text=True"):
            trace.stream(*ids)
    with pytest.raises(LookupError, match="no request 0"):
        load(text=True).stream(0)
