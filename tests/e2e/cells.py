"""What the browser tests' first cells define, so that the tests' own cells stay one line."""

from __future__ import annotations

SETUP = """\
import itertools, threading
from mlx_notebook.notebook import frontend
from mlx_notebook.notebook.stream_widget import StreamView
from tests.notebook.fake_rows import FakeRow, counting

def show(*rows, **options):
    view = StreamView(rows, title="smollm2", metadata={"model": "smollm2", "seed": 7}, **options)
    view.display()
    return view
"""
