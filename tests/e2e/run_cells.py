"""What the first cells of the tests of dashboard and timeline define: a scripted gateway at a chosen speed."""

from __future__ import annotations

SENTENCE = "The tide is the slow breath of the sea and the moon pulls the water along"
WORDS = [f"{word} " for word in SENTENCE.split()]

SETUP = f"""\
import threading, time
import mlx_notebook as mn
from mlx_notebook.core.placement import Capabilities
from mlx_notebook.engine.backend import ScriptedBackend, scripted_texts
%load_ext mlx_notebook

WORDS = {WORDS!r}

def scripted(places=4, step_s=0.05, read_s=0.0002, words=WORDS, **settings):
    facts = Capabilities(vocab_size=0x110000, context_length=32_768,
                         continuous=True, max_rows=places, kv_bytes_per_token=46_080)
    backend = ScriptedBackend(facts, script=scripted_texts(words), step_s=step_s, prefill_s_per_token=read_s)
    return mn.Gateway.from_backend(backend, batch=places, name="demo", **settings)
"""
