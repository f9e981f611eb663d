"""Where a prompt is likely to part from others: found by comparing, dropped where nobody would start from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from mlx_notebook.core.prefix import MIN_REUSE
from mlx_notebook.gateway.boundaries import EDITED, boundaries_of
from mlx_notebook.gateway.gateway import Gateway
from tests.small_models import small, tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

HEAD = "<role>"
LONG = "the fox and the hen went over the hill"


def encode(prompt: Any) -> list[int]:
    """One id a character; each message after its role, an empty answer begun at the end."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    text = "".join(f"<{one['role']}>{one['content']}\n" for one in messages) + "<assistant>"
    return [ord(letter) for letter in text]


def found(prompt: Any) -> tuple[int, ...]:
    return boundaries_of(prompt, encode(prompt), encode)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


SYSTEM = {"role": "system", "content": LONG}
SAID = {"role": "assistant", "content": "a hen"}


def test_an_edited_last_message_and_the_next_turn() -> None:
    messages = [SYSTEM, user("what of it?")]
    edited = len(f"<system>{LONG}\n<user>")
    # The whole prompt comes again in the next turn, but one token is always left to compute.
    assert found(messages) == (edited, len(encode(messages)) - 1)


def test_only_an_answer_that_goes_on_has_no_next_turn() -> None:
    messages = [SYSTEM, user("what of it?"), SAID]
    assert found(messages) == (len(f"<system>{LONG}\n<user>what of it?\n<assistant>"),)


def test_text_is_one_message_of_the_user() -> None:
    # The template's head is a few tokens: that nobody starts from.
    assert len("<user>") < MIN_REUSE
    assert found(LONG) == (len(encode(LONG)) - 1,)
    assert found("x") == (len(encode("x")) - 1,)


@pytest.mark.parametrize("letters", [MIN_REUSE - 1, MIN_REUSE])
def test_from_how_many_tokens_on_it_is_one(letters: int) -> None:
    text = "y" * 40

    def parts_after(prompt: Any) -> list[int]:
        content = prompt if isinstance(prompt, str) else prompt[-1]["content"]
        return [0] * letters + [ord(letter) for letter in content]

    assert boundaries_of(text, parts_after(text), parts_after) == ((letters,) if letters >= MIN_REUSE else ())


def test_ids_have_no_neighbours() -> None:
    assert boundaries_of([1, 2, 3], [1, 2, 3], lambda _other: pytest.fail("not asked")) == ()
    assert boundaries_of([], [], lambda _other: pytest.fail("not asked")) == ()


def test_a_template_that_refuses_the_neighbour_costs_a_saving_and_no_more() -> None:
    messages = [SYSTEM, user("what of it?")]

    def refusing(prompt: Any) -> Sequence[int]:
        if len(prompt) > len(messages):
            raise ValueError("roles must alternate")
        return encode(prompt)

    assert boundaries_of(messages, encode(messages), refusing) == (len(f"<system>{LONG}\n<user>"),)


def test_a_message_like_the_stand_in_parts_where_the_prompt_ends() -> None:
    messages = [SYSTEM, user(EDITED)]
    assert found(messages) == (len(encode(messages)) - 1,)


# ---------------------------------------------------------------- who is asked for them


def boundaries(gateway: Gateway, prompt: Any, **options: Any) -> tuple[int, ...]:
    gateway.pause()
    handle = gateway.submit(prompt, max_tokens=1, **options)
    asked: tuple[int, ...] = handle._record.row.request.boundaries
    handle.cancel()
    gateway.resume()
    return asked


@pytest.mark.parametrize(
    ("kind", "settings", "options", "some"),
    [
        ("mamba2", {}, {}, True),
        ("mamba2", {}, {"cache_prompt": False}, False),
        ("mamba2", {"prompt_cache": 0}, {}, False),
        ("llama", {}, {}, False),  # any of its states can be cut back
    ],
    ids=["kept whole", "not this row", "no cache", "cut back"],
)
def test_they_are_only_asked_for_where_something_comes_of_it(
    kind: str, settings: dict[str, Any], options: dict[str, Any], some: bool
) -> None:
    with Gateway.from_loaded(*small(kind), **settings) as gateway:
        assert bool(boundaries(gateway, [SYSTEM, user(LONG)], **options)) == some


# ---------------------------------------------------------------- what they cost


HEADED = (
    "<|im_start|>system\nYou answer whatever anybody asks of you, in full.<|im_end|>\n"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template with a system message of its own, as many models have."""


@pytest.mark.parametrize("kind", ["mamba2", "gemma3_text", "qwen3_next"])
def test_rows_that_begin_with_a_templates_own_words_are_read_together(kind: str) -> None:
    model, tokenizer = small(kind)[0], tiny_tokenizer()
    tokenizer.chat_template = HEADED
    prompts = [f"a fox and {word}" for word in ("a hen", "two hens", "no hens at all", "the hill")]
    with Gateway.from_loaded(model, tokenizer) as gateway:
        alone = [gateway.generate(prompt, max_tokens=6, cache_prompt=False).token_ids for prompt in prompts]
        gateway.pause()
        handles = gateway.submit(prompts, max_tokens=6)
        head, end = handles[0]._record.row.request.boundaries
        length = handles[0]._record.row.prompt_tokens
        assert MIN_REUSE <= head < end == length - 1
        gateway.resume()
        assert [result.token_ids for result in handles.results()] == alone
        read = [[(span.attributes["start"], span.attributes["stop"]) for span in handle.trace
                 if span.name == "prefill_chunk"] for handle in handles]  # fmt: skip
        assert read[0] == [(0, head), (head, length)]
        assert [chunks for chunks in read[1:] if len(chunks) > 1] == []
        # Whoever comes later starts from it, and its content is what it would have been.
        later = gateway.generate("a fox and a dog", max_tokens=6)
        assert later.cached_tokens == head
        assert later.token_ids == gateway.generate("a fox and a dog", max_tokens=6, cache_prompt=False).token_ids
