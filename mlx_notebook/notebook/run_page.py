"""One HTML file of a run: the widget's own script and style, its data, and a table for readers without script.

Nothing is fetched: the page forbids itself the network. Data stands in a JSON block with every "<" escaped, and the
script puts it in as text.
"""

from __future__ import annotations

import json
import re
from html import escape
from typing import TYPE_CHECKING, Any

from mlx_notebook.notebook.run_widget import STATIC
from mlx_notebook.notebook.static_html import clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_EXPORT = re.compile(r"export\s*\{\s*([\w$]+) as default\s*\};?\s*$")

_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"

_STYLE = (
    ":root{color-scheme:light dark}body{margin:0;padding:12px;font:14px/1.5 system-ui,sans-serif;background:#fff}"
    "@media (prefers-color-scheme: dark){body{background:#0d1014;color:#e6edf3}}"
    "main{max-width:1500px;margin:0 auto}"
)

# What a front end would be to the widget: traits to read and set, nobody to send to.
_HOST = """
const state = JSON.parse(document.getElementById("mlx-data").textContent);
const heard = {};
const model = {
  get: (name) => state[name],
  set: (name, value) => { state[name] = value; },
  save_changes: () => { for (const hear of heard["change:selected"] ?? []) hear(); },
  on: (name, hear) => { (heard[name] ??= []).push(hear); },
  off: () => {},
  send: () => {},
};
const made = mlxWidget();
const signal = new AbortController().signal;
made.initialize({ model, signal });
document.getElementById("mlx-static").remove();
made.render({ model, el: document.getElementById("mlx-view"), signal });
"""


def run_page(
    view: str,
    snapshot: Mapping[str, Any],
    body: Mapping[str, Any],
    *,
    static: str,
    chosen: Mapping[str, Sequence[int]] | None = None,
) -> str:
    """The whole page.

    Args:
        view: "dashboard" or "timeline".
        snapshot: the widget's trait.
        body: everything of the run (docs/wire.md), `why` included.
        static: HTML for readers without script, escaped already.
        chosen: the traits `selected` and `brush`, as the page opens.
    """
    told = {**snapshot, "live": False, "final": True, "body": dict(body)}
    state = {"snapshot": told, "selected": [], "brush": [], **(chosen or {})}
    title = escape(clean_text(f"{view} of {snapshot['title']}"))
    style = (STATIC / f"{view}.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"><title>{title}</title>'
        f"<style>{_STYLE}{style}</style></head><body><main>"
        f'<div id="mlx-view"></div><div id="mlx-static">{static}</div></main>'
        f'<script type="application/json" id="mlx-data">{as_script_data(state)}</script>'
        f'<script type="module">{_script(view)}{_HOST}</script></body></html>\n'
    )


def as_script_data(value: object) -> str:
    """JSON that no parser of HTML can take for the end of its element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return clean_text(text).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _script(view: str) -> str:
    """The widget's bundle, its export turned into a name of this page."""
    bundle = (STATIC / f"{view}.js").read_text(encoding="utf-8")
    script, exports = _EXPORT.subn(lambda found: f"const mlxWidget={found[1]};", bundle)
    if exports != 1:
        raise RuntimeError(f"{view}.js does not end in its one export: it was not built by js/build.mjs")
    return script
