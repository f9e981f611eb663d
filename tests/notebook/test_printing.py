"""What reaches a terminal: text without control characters, whatever its encoding; errors in one line."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pytest

from mlx_notebook.errors import RowFailed
from mlx_notebook.notebook.blocking import shown_briefly
from mlx_notebook.notebook.printing import in_one_line, say, write
from mlx_notebook.terminal import printable

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ntext\twith tabs", "plain\ntext\twith tabs"),
        ("\x1b[31mred\x1b[0m", "[31mred[0m"),
        ("\x1b]0;title\x07", "]0;title"),
        ("back\b\b\bspace\rreturn", "backspacereturn"),
        ("\x9b31mC1\x85next\x7f", "31mC1next"),
        ("a\x00b", "ab"),
        ("lone \ud800 surrogate", "lone ? surrogate"),
        ("fox \U0001f98a caf\u00e9 \u65e5\u672c", "fox \U0001f98a caf\u00e9 \u65e5\u672c"),
    ],
)
def test_control_characters_go_and_the_rest_stays(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_sequence_in_two_pieces_is_as_harmless() -> None:
    assert printable("\x1b") + printable("[2J") == printable("\x1b[2J")


def test_a_terminal_that_knows_few_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    write("fox \U0001f98a!")
    assert raw.getvalue() == rb"fox \U0001f98a!"


def test_our_lines_carry_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    say("failed: \x1b[31mno")
    assert capsys.readouterr().out == "failed: [31mno\n"


def shown_by_ipython(shell: InteractiveShell, error: BaseException) -> str:
    shell.user_ns["error"] = error
    with pytest.MonkeyPatch.context() as patch:
        out = io.StringIO()
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", out)
        shell.run_cell("raise error")
    return out.getvalue()


def test_an_error_in_one_line_keeps_its_type(shell: InteractiveShell) -> None:
    error = in_one_line(ValueError("temperature=3 is out of range\x1b[2J"))
    assert shown_by_ipython(shell, error) == "ValueError: temperature=3 is out of range[2J\n"
    assert type(error) is ValueError
    assert shown_by_ipython(shell, in_one_line(KeyboardInterrupt())) == "KeyboardInterrupt\n"


def test_a_failed_row_shows_the_failing_codes_own_traceback(shell: InteractiveShell) -> None:
    error = RowFailed("request 3 failed: ZeroDivisionError: division by zero", traceback_text="  line 7, in mine\n")
    shown = shown_by_ipython(shell, shown_briefly(error))
    assert shown == "  line 7, in mine\nRowFailed: request 3 failed: ZeroDivisionError: division by zero\n"
