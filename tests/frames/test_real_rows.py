"""`map`, `compare` and chats over real models in one batch: each row is what it says alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mlx_notebook.gateway.chats import Chat
from mlx_notebook.gateway.gateway import Gateway
from tests.small_models import small

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["llama", "gemma3_text", "mamba2"])
def gateway(request: pytest.FixtureRequest) -> Iterator[Gateway]:
    with Gateway.from_loaded(*small(request.param), batch=8, deterministic=True) as made:
        yield made


@pytest.fixture(autouse=True)
def no_thread_left() -> None:
    """The gateway is the module's: it outlives each test."""


def test_each_row_can_be_drawn_again_alone(gateway: Gateway) -> None:
    prompts = [f"the fox and the hen {'went over ' * (i % 5)}{i}" for i in range(20)]
    frame = gateway.map(prompts, max_tokens=8, temperature=1.0, top_p=0.9, n=2)
    assert frame.error.isna().all()
    for position in (0, 7, 22, 39):
        row = frame.iloc[position]
        alone = gateway.submit(
            prompts[position // 2], max_tokens=8, temperature=1.0, top_p=0.9, seed=int(row.seed)
        ).result()
        assert alone.text == row.text


def test_samples_of_one_prompt_differ_and_greedy_ones_do_not(gateway: Gateway) -> None:
    hot = gateway.map(["the hill"], n=6, max_tokens=8, temperature=1.0, seed=1)
    cold = gateway.map(["the hill"], n=6, max_tokens=8, seed=1)
    assert hot.text.nunique() > 1
    assert cold.text.nunique() == 1


def test_settings_side_by_side_are_what_they_are_apart(gateway: Gateway) -> None:
    settings = {"short": {"max_tokens": 3}, "long": {"max_tokens": 9}}
    together = gateway.compare(["the river", "the moon"], settings, seed=3)
    for name, options in settings.items():
        apart = gateway.map(["the river", "the moon"], max_tokens=options["max_tokens"], seed=3)
        assert together[together.setting == name].text.tolist() == apart.text.tolist()


def test_a_chat_s_turns_are_those_of_its_messages(gateway: Gateway) -> None:
    chat = Chat("test")
    handles = [chat.submit(gateway, text, max_tokens=6).handle for text in ("the fox", "the hen", "the hill")]
    answers = [handle.result().text for handle in handles]
    messages = []
    for question, answer in zip(("the fox", "the hen", "the hill"), answers, strict=True):
        messages.append({"role": "user", "content": question})
        assert gateway.submit(messages, max_tokens=6).result().text == answer
        messages.append({"role": "assistant", "content": answer})
    assert chat.messages == messages
