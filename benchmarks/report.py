"""Writes the kept results into the documents: `python -m benchmarks.report` (with `--check`, only says if they differ).

Ratios only: absolute figures belong to the machine that they were measured on, and stand in results/.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.harness import RESULTS, markdown_table

BEGIN = "<!-- measured: begin -->"
END = "<!-- measured: end -->"
DOCUMENTS = (Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md",)


def read(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Every kept result that has lines, by file name."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [result for result in found if isinstance(result, dict) and "lines" in result]


def section(results: list[dict[str, Any]]) -> str:
    """A table of ratios for each result, under its title, with what it was measured on."""
    return "\n\n".join(_one(result) for result in results)


def _one(result: dict[str, Any]) -> str:
    rows = [["", "beside", "ratio", "95% interval", "bar"]]
    for line in result["lines"]:
        ratio = line["ratio"]
        bar = "" if line["bar"] is None else f"{'≥' if line['more_is_better'] else '≤'} {line['bar']:g}"
        good = "more is better" if line["more_is_better"] else "less is better"
        interval = f"{ratio['low']:.2f} to {ratio['high']:.2f}"
        rows.append([f"{line['what']} ({good})", line["peer"], f"{ratio['median']:.2f}", interval, bar])
    seen = result["environment"]
    where = f"{seen['cpu']}, {seen['cores']} cores, Python {seen['python']}, MLX {seen['packages']['mlx']}"
    pairs = result["lines"][0]["ratio"]["pairs"]
    settings = result.get("settings", {})  # some say with which options, and on which device, they were run
    command = settings.get("command", f"python -m benchmarks.{result['name']}")
    on = f"{settings['device']}; " if "device" in settings else ""
    about = f"`{command}`, {pairs} pairs, {seen['date'][:10]}, commit {seen['commit']}: {on}{where}."
    return f"### {result['title']}\n\n{markdown_table(rows)}\n\n{about}"


def replaced(text: str, new: str) -> str:
    """The document with what stands between its two marks replaced.

    Raises ValueError where a mark is missing.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document needs the marks {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n{new}\n{END}{after}"


def main() -> int:
    """Write, or with `--check` compare; exit status 1 where a document is behind the results."""
    new = section(read())
    behind = False
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        wanted = replaced(text, new)
        behind = behind or wanted != text
        if "--check" not in sys.argv:
            path.write_text(wanted, encoding="utf-8")
    if "--check" in sys.argv and behind:
        print("docs are behind benchmarks/results: run python -m benchmarks.report")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
