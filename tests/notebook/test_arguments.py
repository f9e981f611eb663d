"""A magic's line: quoting, `$name`, forms of values, and what each mistake says."""

from __future__ import annotations

from typing import Any

import pytest
from IPython.core.error import UsageError

from mlx_notebook.core.options import LATER_OPTIONS, option_names
from mlx_notebook.errors import UnsupportedRequest
from mlx_notebook.notebook.arguments import Parsed, parse
from mlx_notebook.notebook.options import CANCEL, GENERATE, LOAD, MAGICS, STATUS, help_text


def generate(line: str, **variables: Any) -> dict[str, Any]:
    return parse(GENERATE, line, variables).values


def complaint(line: str, **variables: Any) -> str:
    with pytest.raises(UsageError) as caught:
        parse(GENERATE, line, variables)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_options_are_read_with_their_types() -> None:
    values = generate("--max-tokens 64 --temperature 0.7 --into story --wait --view quiet")
    assert values == {"max_tokens": 64, "temperature": 0.7, "into": "story", "wait": True, "view": "quiet"}


def test_only_what_was_given_is_there() -> None:
    assert parse(GENERATE, "", {}) == Parsed({}, [])


def test_quotes_and_equals_signs() -> None:
    assert generate("""--system "You're brief." --stop='a b'""") == {"system": "You're brief.", "stop": ["a b"]}


def test_negative_numbers_are_values() -> None:
    values = generate("--presence-penalty -0.5 --priority -2 --frequency-penalty -.5")
    assert values == {"presence_penalty": -0.5, "priority": -2, "frequency_penalty": -0.5}


def test_an_option_may_be_repeated_where_that_means_something() -> None:
    assert generate("--stop END --stop '\u2026'") == {"stop": ["END", "\u2026"]}
    assert "--seed was given twice" in complaint("--seed 1 --seed 2")


def test_switches_alone_and_with_a_word() -> None:
    assert generate("--cache-prompt=false --raw --keep true --allow-special off") == {
        "cache_prompt": False,
        "raw": True,
        "keep": True,
        "allow_special": False,
    }


def test_logprobs_alone_means_of_the_chosen_token() -> None:
    assert generate("--logprobs --wait") == {"logprobs": True, "wait": True}
    assert generate("--logprobs 5") == {"logprobs": 5}


def test_a_whole_value_of_dollar_name_is_that_object() -> None:
    bias = {42: -5.0}
    assert generate("--logit-bias $bias", bias=bias)["logit_bias"] is bias
    assert generate("--temperature $t", t=0.25) == {"temperature": 0.25}


def test_dollars_elsewhere_are_text() -> None:
    assert generate("--system 'costs $5' --stop '$' --stop '$a.b'", a=1) == {
        "system": "costs $5",
        "stop": ["$", "$a.b"],
    }
    assert generate("--stop '$$END'") == {"stop": ["$END"]}


def test_braces_are_left_alone() -> None:
    assert generate("--system '{name} {{x}}'", name="no") == {"system": "{name} {{x}}"}


def test_literals() -> None:
    assert generate("--logit-bias '{42: -5, 7: 1.5}'") == {"logit_bias": {42: -5, 7: 1.5}}


def test_shapes_are_words_or_objects() -> None:
    assert generate("--choices good,bad") == {"choices": ["good", "bad"]}
    assert generate("--choices 'very good, bad'") == {"choices": ["very good", "bad"]}
    assert generate("""--choices "['a,b', 'c']" """) == {"choices": ["a,b", "c"]}
    words = [" good", " bad"]
    assert generate("--choices $words", words=words)["choices"] is words
    schema = {"type": "integer"}
    assert generate("--json-schema $schema --max-tokens 3", schema=schema)["json_schema"] is schema
    assert generate(r"--regex '[a-z]+\d' --grammar $lark", lark="start: X") == {
        "regex": r"[a-z]+\d",
        "grammar": "start: X",
    }


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--choices '[1'", "--choices takes a list of texts, not '[1'"),
        ("--json-schema", "--json-schema needs a value: --json-schema $SCHEMA"),
        ("--temprature 1", "no option --temprature; did you mean --temperature?"),
        ("--max_tokens 5", "did you mean --max-tokens?"),
        ("--temp 1", "here it is --temperature"),
        ("--max-new-tokens 5", "here it is --max-tokens"),
        ("-seed 5", "did you mean --seed?"),
        ("\u2014seed 5", "did you mean --seed?"),
        ("--zzz", "%%mlxgen? lists them all"),
        ("--temperature warm", "--temperature takes a number, not 'warm'"),
        ("--max-tokens 6.5", "--max-tokens takes a whole number, not '6.5'"),
        ("--max-tokens", "--max-tokens needs a value: --max-tokens N"),
        ("--max-tokens --raw", "--max-tokens needs a value: --max-tokens N"),
        ("--into 2fast", "--into takes the name of a variable, not '2fast'"),
        ("--into class", "--into takes the name of a variable, not 'class'"),
        ("--view big", "--view takes stream, table or quiet, not 'big'"),
        ("--raw=perhaps", "--raw takes true or false, not 'perhaps'"),
        ("--logit-bias {42:", "--logit-bias takes a dictionary {id: bias}, not '{42:'"),
        ("--logits-processors f", "--logits-processors takes a function or a list, as $name, not 'f'"),
        ("--system $sytem", "there is no variable 'sytem'; did you mean system?; for the text itself write '$$sytem'"),
        ("--system You're brief", "a quote is not closed"),
        ("--system You are brief", "'are' is no option. The prompt goes on the lines below the first"),
        ("Tell me about a fox.", "'Tell' is no option. The prompt goes on the lines below the first"),
    ],
)
def test_each_mistake_says_what_was_probably_meant(line: str, said: str) -> None:
    message = complaint(line, system="x")
    assert message.startswith("%%mlxgen")
    assert said in message


@pytest.mark.parametrize("flag", GENERATE.later)
def test_options_of_later_versions_are_refused_by_name(flag: str) -> None:
    with pytest.raises(UnsupportedRequest, match=flag) as caught:
        generate(f"{flag} x")
    assert "\n" not in str(caught.value)
    assert [reason.code for reason in caught.value.reasons] == ["not-in-this-version"]
    assert f"    {flag} " not in help_text(GENERATE)
    assert GENERATE.option(flag) is None


def test_later_names_of_the_core_are_refused_here_too() -> None:
    assert {"--" + name.replace("_", "-") for name in LATER_OPTIONS} <= set(GENERATE.later)


def test_every_option_of_the_core_has_a_flag() -> None:
    keywords = {option.keyword for option in GENERATE.options}
    assert set(option_names()) - {"n"} <= keywords


def test_plain_words() -> None:
    assert parse(LOAD, "'my model' --name m", {}) == Parsed({"name": "m"}, ["my model"])
    assert parse(CANCEL, "all", {}).words == ["all"]


@pytest.mark.parametrize(
    ("magic", "line", "said"),
    [
        (LOAD, "", "%mlxload needs MODEL"),
        (LOAD, "a b", "takes only MODEL, and there is 'b' as well"),
        (STATUS, "now", "%mlxstatus takes nothing after it, and there is 'now' as well"),
        (STATUS, "--all", "%mlxstatus takes no options, and --all looks like one"),
        (CANCEL, "1 2", "takes only [ID|all]"),
        (LOAD, "x --batch many", "--batch takes a whole number, not 'many'"),
        (LOAD, "x --kv-bugdet 4GB", "did you mean --kv-budget?"),
    ],
)
def test_mistakes_in_plain_words(magic: Any, line: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(magic, line, {})
    assert said in str(caught.value)


def test_sizes_and_auto() -> None:
    values = parse(LOAD, "m --batch auto --kv-budget 4GB --prompt-cache 1000", {}).values
    assert values == {"batch": "auto", "kv_budget": "4GB", "prompt_cache": 1000}


@pytest.mark.parametrize("magic", MAGICS, ids=lambda magic: magic.name)
def test_help_names_every_option_once(magic: Any) -> None:
    page = help_text(magic)
    assert magic.does in page
    for option in magic.options:
        assert page.count(f"    {option.flag} ") == 1
    assert max(map(len, page.splitlines())) <= 110
