"""IPython in a terminal: the text comes in its place, Ctrl-C ends it, the shell goes on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pexpect
import pytest

from tests.tools.conftest import FOX, REPOSITORY, environment, run_tool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

PROMPT = r"In \[\d+\]: $"


@pytest.fixture
def terminal() -> Iterator[pexpect.spawn[str]]:
    """An interactive IPython with the extension loaded, at its prompt."""
    arguments = ["-m", "IPython", "--simple-prompt", "--no-banner", "--HistoryManager.enabled=False"]
    child = pexpect.spawn(
        sys.executable,
        [*arguments, "--InteractiveShell.colors=nocolor"],
        cwd=str(REPOSITORY),
        env=environment() | {"COLUMNS": "200"},
        encoding="utf-8",
        echo=False,
        timeout=None,
        dimensions=(40, 200),
    )
    child.expect_exact("In [1]: ")
    child.sendline("%load_ext mlx_notebook")
    child.expect_exact("In [2]: ")
    yield child
    child.sendline("exit")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert child.signalstatus is None


def run_cell(terminal: pexpect.spawn[str], text: str) -> str:
    """Type a cell; what came until the next prompt, with plain line ends."""
    type_cell(terminal, text)
    terminal.expect(PROMPT)
    said: str = terminal.before or ""
    return said.replace("\r\n", "\n").replace("   ...: ", "").strip()


def type_cell(terminal: pexpect.spawn[str], text: str) -> None:
    for line in text.splitlines():
        terminal.sendline(line)
    if "\n" in text:  # a cell of several lines ends with a blank one, and a cell magic is not run before the next
        terminal.sendline("")
        terminal.sendline("")


def test_the_text_comes_in_its_place(terminal: pexpect.spawn[str], texts: tuple[str, str]) -> None:
    run_cell(terminal, "%mlxload smollm2")
    assert run_cell(terminal, f"%%mlxgen --max-tokens 12 --into fox\n{FOX}") == texts[0]
    assert run_cell(terminal, "_ is fox") == "Out[4]: True"
    assert run_cell(terminal, "print(fox.text)") == texts[0]


def test_ctrl_c_ends_the_answer_and_the_shell_goes_on(terminal: pexpect.spawn[str], texts: tuple[str, str]) -> None:
    run_cell(terminal, "%mlxload smollm2")
    type_cell(terminal, "%%mlxgen --raw --max-tokens 4000 --into long\nOnce upon a time")
    terminal.expect("[a-z]+ [a-z]+")
    terminal.sendintr()
    terminal.expect(r"Interrupted: request \d+ cancelled\.")
    terminal.expect(PROMPT)
    assert "Traceback" not in (terminal.before or "")
    assert run_cell(terminal, "print(long.exception())").endswith("was cancelled (asked for)")
    assert run_cell(terminal, f"%%mlxgen --max-tokens 12\n{FOX}") == texts[0]


def test_an_ipython_script(tmp_path: Path, texts: tuple[str, str]) -> None:
    script = tmp_path / "fox.ipy"
    script.write_text(
        "%load_ext mlx_notebook\n"
        "%mlxload smollm2\n"
        f"handle = get_ipython().run_cell_magic('mlxgen', '--max-tokens 12', {FOX!r})\n"
        "print(handle.status)\n",
        encoding="utf-8",
    )
    said = run_tool("-m", "IPython", "--HistoryManager.enabled=False", script, cwd=REPOSITORY).splitlines()
    # The load said its five lines, without a bar: nobody can draw over a file.
    assert said[-1] == "finished"
    assert "\n".join(said[5:-1]) == texts[0]
    assert not any("\r" in line for line in said)
