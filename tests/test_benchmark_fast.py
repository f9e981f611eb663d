"""Every table of `benchmarks.fast` runs on a small model: all sides make their tokens, and its lines are kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx_lm
import pytest

from benchmarks import report
from benchmarks.fast import transformers_peer
from benchmarks.fast.__main__ import main
from benchmarks.fast.folder import never, save_folder
from benchmarks.fast.poisson import arrivals
from benchmarks.fast.server import run_server, serving
from benchmarks.fast.shapes import arrays_of, load
from benchmarks.fast.shared import BY_HAND
from benchmarks.fast.steps import forwards
from benchmarks.fast.tables import LETTERS, TABLES, named_by
from benchmarks.fast.work import log_spaced, prompt
from mlx_notebook.core.events import PrefillPart

CHECKOUT = Path(__file__).resolve().parent.parent
SIZES = {
    "rounds": 2,
    "steps": 3,
    "prompt": 12,
    "answer": 4,
    "requests": 3,
    "longest": 60,
    "joiner": 150,
    "shared": 80,
    "grown": 48,
}
SMALL = [word for name, size in SIZES.items() for word in (f"--{name}", str(size))]

PEERS = {
    "steps": ["BatchGenerator", "bare loop"] * 2,
    "capacity": ["room for 256"],
    "runs": ["BatchGenerator", "batch_generate"] * 2,
    "poisson": ["BatchGenerator"] * 6,
    "mixed": ["BatchGenerator", "batch_generate"],
    "gaps": ["target and two steps", "BatchGenerator", "BatchGenerator"],
    "first": ["stream_generate"] * 3,
    "shared": [BY_HAND, "BatchGenerator", BY_HAND],
    "quantised": [*["native", "native", "BatchGenerator"] * 4, *["stream_generate"] * 2],
    "growth": ["BatchGenerator"] * 4,
    "server": ["mlx_lm.server"] * 2,
}
"""Of each line of a table, asked for two row counts."""


def measured(folder: Path, *arguments: str) -> dict[str, Any]:
    """The kept results of a run, by table. A missed bar is no failure here, a table that broke is."""
    status = main([*arguments, "--rows", "1,3", *SMALL, "--to", str(folder)])
    assert status in {0, 1}
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("fast_*.json")]
    return {result["settings"]["table"]: result for result in kept}


SLOW = {"server"}  # starts a process that loads the model


@pytest.mark.parametrize(
    "table", [pytest.param(table, marks=pytest.mark.slow) if table in SLOW else table for table in PEERS]
)
def test_each_table_has_its_lines_and_samples(table: str, tmp_path: Path) -> None:
    result = measured(tmp_path, table, "--shape", "tiny")[table]
    assert result["name"] == f"fast_{table}_tiny"
    assert [line["peer"] for line in result["lines"]] == PEERS[table]
    assert all(line["ratio"]["pairs"] == 2 for line in result["lines"])
    assert {len(samples) for samples in result["samples"].values()} == {2}
    assert result["settings"]["shape"] == "tiny"
    assert {"date", "packages", "cpu"} <= result["environment"].keys()


@pytest.mark.parametrize("shape", ["tiny-4bit", "tiny-windowed", "tiny-hybrid"])
def test_other_kinds_of_model_run_too(shape: str, tmp_path: Path) -> None:
    assert measured(tmp_path, "steps", "runs", "--shape", shape).keys() == {"steps", "runs"}


@pytest.mark.parametrize("shape", ["tiny", "tiny-4bit", "tiny-windowed", "tiny-hybrid"])
def test_the_folder_of_every_kind_of_model_is_read_again(shape: str, tmp_path: Path) -> None:
    loaded = load(shape)
    save_folder(loaded, tmp_path)
    model, tokenizer = mlx_lm.load(str(tmp_path))  # Transformers reads the configuration too, for the tokenizer
    assert [array.shape for array in arrays_of(model)] == [array.shape for array in arrays_of(loaded.model)]
    assert tokenizer.eos_token_ids == {never(loaded)}


@pytest.mark.slow  # starts a process
def test_a_server_that_cannot_load_its_model_is_not_waited_for_and_says_why(tmp_path: Path) -> None:
    save_folder(load("tiny"), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(RuntimeError, match="No safetensors found"), serving(tmp_path, 1) as port:
        run_server(port, ["a fox"], 1, {"a fox": 5})


def test_a_table_that_breaks_does_not_keep_the_next_from_being_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setitem(TABLES, "steps", ("Broken", broken))
    status = main(["steps", "capacity", "--rows", "2", "--shape", "tiny", *SMALL, "--to", str(tmp_path)])
    assert status == 2
    assert "the device is gone" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["fast_capacity_tiny.json"]


def test_transformers_runs_after_ours_on_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch is not among what tests need: its process is played here."""
    asked: dict[str, Any] = {}

    def played(what: dict[str, Any]) -> dict[str, Any]:
        asked.update(what)
        model, tokenizer = mlx_lm.load(what["folder"])
        asked["shapes"] = [array.shape for array in arrays_of(model)]
        assert tokenizer.eos_token_ids == {what["never"]}
        answered = {"seconds": 0.5, "fewest": what["answer"], "most": what["answer"]}
        runs = [[{**answered, "rows": len(prompts)} for prompts in batches] for batches in what["batches"]]
        return {"device": "cpu", "torch": "none", "runs": runs}

    monkeypatch.setenv(transformers_peer.PYTHON, "python-with-torch")
    monkeypatch.setattr(transformers_peer, "child", played)
    result = measured(tmp_path, "transformers", "--shape", "tiny")["transformers"]
    assert [line["peer"] for line in result["lines"]] == [transformers_peer.PEER] * 2
    assert [line["theirs"]["median"] for line in result["lines"]] == [1 * 4 / 0.5, 3 * 4 / 0.5]
    assert asked["shapes"] == [array.shape for array in arrays_of(load("tiny").model)]
    prompts = [tuple(ids) for batches in asked["batches"] for batch in batches for ids in batch]
    assert len(set(prompts)) == len(prompts) == 3 * (1 + 3)


def test_transformers_is_left_out_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(transformers_peer.PYTHON, raising=False)
    monkeypatch.setattr(transformers_peer, "find_spec", lambda _name: None)
    assert main(["transformers", "--shape", "tiny", *SMALL, "--no-keep"]) == 0
    assert "PyTorch is not installed here" in capsys.readouterr().out
    monkeypatch.setenv(transformers_peer.PYTHON, "python-with-torch")
    assert main(["transformers", "--shape", "tiny-4bit", *SMALL, "--no-keep"]) == 0
    assert "only Llamas" in capsys.readouterr().out


def test_what_is_kept_can_be_put_into_the_documents(tmp_path: Path) -> None:
    main(["capacity", "--rows", "2", *SMALL, "--to", str(tmp_path)])
    text = report.section(report.read(tmp_path))
    assert text.startswith("### Room for a long row: two narrow layers, float32")
    assert "`python -m benchmarks.fast" in text
    assert str(tmp_path) not in text


def test_nothing_is_kept_where_that_is_asked(tmp_path: Path) -> None:
    assert main(["capacity", "--rows", "2", *SMALL, "--no-keep", "--to", str(tmp_path)]) in {0, 1}
    assert not list(tmp_path.iterdir())


def test_letters_stand_for_tables_each_once() -> None:
    assert named_by(["a", "capacity", "d"]) == ["steps", "capacity", "gaps"]
    assert {name for names in LETTERS.values() for name in names} <= set(TABLES) == {*PEERS, "transformers"}


def test_prompts_share_no_beginning_and_lengths_grow_by_one_factor() -> None:
    assert len({tuple(prompt(number, 8, 1_024)[:2]) for number in range(200)}) == 200
    assert min(min(prompt(number, 300, 1_024)) for number in range(20)) >= 3
    assert log_spaced(16, 4_000, 5) == [16, 64, 253, 1_006, 4_000]
    assert log_spaced(16, 4_000, 1) == [16]


def test_a_character_is_a_token_and_every_id_has_text() -> None:
    tokenizer = load("tiny").tokenizer
    assert len(tokenizer.encode("a fox")) == 5
    assert tokenizer.decode(tokenizer.encode("a fox")) == "a fox"
    assert len(tokenizer) == 1_024
    assert tokenizer.decode([1_000, 1_001]) == " w1000 w1001"


def test_arrivals_are_the_same_every_time_and_as_dense_as_asked() -> None:
    moments = arrivals(2_000, 10.0)
    assert moments == arrivals(2_000, 10.0)
    assert moments[0] == 0.0
    assert moments == sorted(moments)
    assert moments[-1] == pytest.approx(10.0, rel=0.1)


def test_long_prompts_are_read_alone_in_chunks_and_short_ones_together() -> None:
    parts = [PrefillPart(0, 0, 100, last=True), PrefillPart(1, 0, 5_000, last=True), PrefillPart(2, 0, 100, last=True)]
    found = [[(part.row_id, part.start, part.stop, part.last) for part in one.parts] for one in forwards(parts)]
    assert found == [
        [(1, 0, 2_048, False)],
        [(1, 2_048, 4_096, False)],
        [(1, 4_096, 5_000, True)],
        [(0, 0, 100, True), (2, 0, 100, True)],
    ]


@pytest.mark.slow
def test_a_machine_without_the_notebook_can_run_them() -> None:
    """A lent GPU has MLX and what PyTorch brings, not what a notebook needs."""
    absent = ("IPython", "anywidget", "gguf", "ipykernel", "ipywidgets", "llguidance", "matplotlib", "traitlets")
    code = (
        f"import sys\nfor name in {absent!r}: sys.modules[name] = None\n"
        "from benchmarks.fast.__main__ import main\n"
        f"sys.exit(main(['steps', 'runs', '--rows', '1,2', *{SMALL!r}, '--no-keep']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=CHECKOUT)
    assert done.returncode == 0, done.stderr
