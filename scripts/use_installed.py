"""Uses the installed package, far from any checkout: a scripted gateway, a magic, and the real model.

`use_installed.py CHECKOUT` fails if what it imports lies in that checkout.
"""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path


def main(checkout: Path) -> None:
    """Import, run a gateway without a model, ask SmolLM2 from Python and from a cell."""
    import mlx_notebook as mn
    from mlx_notebook.engine.backend import ScriptedBackend

    here = Path(mn.__file__).resolve()
    if here.is_relative_to(checkout.resolve()):
        raise SystemExit(f"this is the checkout's copy, not the installed one: {here}")
    bundles = [entry.name for entry in (files(mn) / "static").iterdir() if entry.name.endswith(".js")]
    print(f"{here.parent}, widget {', '.join(bundles)}")

    with mn.Gateway.from_backend(ScriptedBackend()) as gateway:
        handles = [gateway.submit([1, 2, 3], max_tokens=count) for count in (3, 5)]
        texts = [handle.result().text for handle in handles]
    if [len(text) for text in texts] != [3, 5]:
        raise SystemExit(f"the scripted gateway said {texts!r}")

    with mn.Gateway("smollm2") as gateway:
        expect_paris("from Python", gateway.submit("What is the capital of France?", max_tokens=24).result().text)
    expect_paris("from a cell", answer_of_a_cell())


def answer_of_a_cell() -> str:
    """The same through the magics, in a plain IPython shell."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    for line in ("%load_ext mlx_notebook", "%mlxload smollm2"):
        shell.run_cell(line).raise_error()
    shell.run_cell("%%mlxgen --max-tokens 24 --into answer\nWhat is the capital of France?").raise_error()
    shell.run_cell("text = answer.text").raise_error()
    shell.run_cell("%unload_ext mlx_notebook").raise_error()
    return str(shell.user_ns["text"])


def expect_paris(where: str, text: str) -> None:
    """Stop with an error unless the answer is right."""
    if "Paris" not in text:
        raise SystemExit(f"{where}, the model said {text!r}")
    print(f"{where}: {text}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
