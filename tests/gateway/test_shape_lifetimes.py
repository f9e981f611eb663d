"""Rows with shapes hold back nobody while theirs is compiled, and free their matchers whatever becomes of them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.engine import grammar
from mlx_notebook.engine import matcher as matchers
from mlx_notebook.errors import RowFailed
from mlx_notebook.gateway.gateway import Gateway
from tests.gateway.fakes import in_thread, wait_for
from tests.gateway.real_rows import faltering
from tests.small_models import small

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlx_notebook.gateway.handle import Handle

SHAPE: dict[str, Any] = {"regex": "[a-z]{40}", "max_tokens": 20}
PROMPT = list(range(3, 43))
FOREVER_S = 1e6


@pytest.fixture(autouse=True)
def every_matcher_is_freed() -> Iterator[None]:
    before = matchers.live
    yield
    assert matchers.live == before


def test_a_shape_that_is_being_compiled_holds_back_only_its_own_row(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, gate, going = threading.Event(), threading.Event(), threading.Event()
    compiled, compile_grammar = grammar.cache.compiled, grammar.compile_grammar

    def gated(*asked: Any) -> Any:
        begun.set()
        gate.wait()
        return compile_grammar(*asked)

    monkeypatch.setattr(grammar, "compile_grammar", gated)
    monkeypatch.setattr(grammar.cache, "compiled", lambda spec, words: compiled(spec, words, FOREVER_S))
    with Gateway.from_loaded(*small("llama"), batch=4) as gateway:
        running = gateway.submit("a", max_tokens=300, logit_bias={2: -100.0}, on_token=lambda *_: going.wait() or None)
        shaped = in_thread(lambda: gateway.generate("b", regex="[ab]{4}y"))
        begun.wait()
        going.set()
        assert running.result().generated_tokens == 300, "a row that ran goes on to its end"
        assert "".join(gateway.submit("c", max_tokens=9)) == gateway.generate("c", max_tokens=9).text
        assert shaped.thread.is_alive()
        gate.set()
        assert shaped.result().parsed.endswith("y")


class Faltering:
    """A gateway whose forwards can be made to fail, paused; one row with a shape and one without are submitted."""

    def __init__(self) -> None:
        self.before = matchers.live
        model, tokenizer, self.faults = faltering("llama")
        self.gateway = Gateway.from_loaded(model, tokenizer, batch=4, prefill_chunk=8)
        self.gateway.pause()

    def submit(self) -> Handle:
        handle: Handle = self.gateway.submit(PROMPT, raw=True, **SHAPE)
        return handle

    def till(self, handle: Handle, status: str) -> None:
        """Compute turn by turn till the row is there."""
        while handle.status != status:
            self.gateway.step(1)
        assert matchers.live == self.before + 1, "it has a matcher by then"

    def nothing_is_left(self) -> None:
        """Also while the gateway lives, and it still answers."""
        self.gateway.resume()
        self.gateway.wait_idle()
        assert matchers.live == self.before
        assert self.gateway.generate("a", choices=["yes", "no"]).parsed in ("yes", "no")
        assert matchers.live == self.before


@pytest.fixture
def served() -> Iterator[Faltering]:
    made = Faltering()
    with made.gateway:
        yield made


def test_a_prefill_that_fails_frees_the_matcher(served: Faltering) -> None:
    handle = served.submit()
    served.till(handle, "prefill")
    served.faults.pending = 1
    served.gateway.resume()
    with pytest.raises(RowFailed, match="no room"):
        handle.result()
    assert handle.progress().generated_tokens == 0
    served.nothing_is_left()


def test_a_row_that_is_cancelled_in_its_prefill_frees_the_matcher(served: Faltering) -> None:
    handle = served.submit()
    served.till(handle, "prefill")
    handle.cancel()
    wait_for(handle.done)
    assert handle.cancelled()
    assert matchers.live == served.before, "before the engine goes on"
    served.nothing_is_left()


def test_a_forward_that_fails_once_keeps_the_matcher_and_one_that_fails_twice_frees_it(served: Faltering) -> None:
    handle = served.submit()
    served.till(handle, "decode")
    served.gateway.step(3)
    served.faults.pending = 1
    served.gateway.step(1)
    came = handle.progress().generated_tokens
    served.till(handle, "decode")
    while handle.progress().generated_tokens == came:
        served.gateway.step(1)
    served.faults.pending = 1
    served.gateway.resume()
    with pytest.raises(RowFailed, match="no room"):
        handle.result()
    assert handle.text_so_far.isalpha()
    served.nothing_is_left()
