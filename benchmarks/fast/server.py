"""Whole runs beside `mlx_lm.server` over HTTP, with as many clients as requests; the two processes one after the other.

Ours runs first; then the model leaves this process and the server reads it from a folder, so that it is in memory once.
The server keeps prompts by default, so that no two requests of the table begin alike.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.environment import CHECKOUT
from benchmarks.fast.folder import save_folder, text_of
from benchmarks.fast.steps import named
from benchmarks.fast.table import OURS
from benchmarks.fast.work import GREEDY, checked

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.fast.sides import Sides
    from benchmarks.fast.table import Table
    from benchmarks.fast.work import Work
    from mlx_notebook import Gateway

PEER = "mlx_lm.server"
WAIT_S = 0.2
LINE = 512
START = f"""
import benchmarks.fast
from http.server import ThreadingHTTPServer
from mlx_lm.server import main
ThreadingHTTPServer.request_queue_size = {LINE}
main()
"""
"""With the BLAS that ours has: on a CPU the server would else be compared by another library. And with a line for new
connections that no client falls out of: of the five places that it has, clients came back after whole seconds."""


def server(table: Table, sides: Sides, work: Work) -> None:
    """Tokens a second of whole runs."""
    counts, salt = work.rows_or(8, 32, 128), itertools.count()
    texts = {
        rows: [[text_of(sides.loaded, next(salt), work.prompt) for _ in range(rows)] for _ in range(work.rounds + 1)]
        for rows in counts
    }
    with tempfile.TemporaryDirectory() as folder:
        save_folder(sides.loaded, Path(folder))
        gateway = sides.gateway(max(counts))
        lengths: dict[str, int] = {}
        for rows in counts:
            runs = [run_ours(gateway, each, work.answer, lengths) for each in texts[rows]]
            table.samples[named(OURS, rows)] = runs[1:]
        del gateway
        sides.unload()
        with serving(Path(folder), max(counts)) as port:
            for rows in counts:
                runs = [run_server(port, each, work.answer, lengths) for each in texts[rows]]
                table.samples[named(PEER, rows)] = runs[1:]
                what = f"{rows} requests of {work.prompt}+{work.answer}, {rows} {'client' if rows == 1 else 'clients'}"
                table.line("rate", named(OURS, rows), named(PEER, rows), what=what, unit="tokens/s")


def run_ours(gateway: Gateway, texts: Sequence[str], answer: int, lengths: dict[str, int]) -> dict[str, float]:
    """All at once through the gateway; how many tokens each prompt has goes into `lengths`."""
    began = time.perf_counter()
    results = gateway.submit(list(texts), max_tokens=answer, raw=True, **GREEDY).results()
    spent = time.perf_counter() - began
    lengths |= {text: result.prompt_tokens for text, result in zip(texts, results, strict=True)}
    return {"rate": checked([result.generated_tokens for result in results], answer, OURS) / spent}


def run_server(port: int, texts: Sequence[str], answer: int, lengths: dict[str, int]) -> dict[str, float]:
    """A client a request, each on a thread; from the first request to the last response.

    They have connected before: how connections are made is not what is measured.
    """
    connections = [http.client.HTTPConnection("127.0.0.1", port) for _ in texts]
    try:
        for connection in connections:
            connection.connect()
        with ThreadPoolExecutor(len(texts)) as clients:
            began = time.perf_counter()
            used = list(clients.map(lambda one, text: ask(one, text, answer), connections, texts))
            spent = time.perf_counter() - began
    finally:
        for connection in connections:
            connection.close()
    read = [usage["prompt_tokens"] for usage in used]
    if read != [lengths[text] for text in texts]:
        raise RuntimeError(f"{PEER} read {read} tokens, ours {[lengths[text] for text in texts]}")
    return {"rate": checked([usage["completion_tokens"] for usage in used], answer, PEER) / spent}


def ask(connection: http.client.HTTPConnection, text: str, answer: int) -> dict[str, int]:
    """One completion; what the server says it read and wrote."""
    body = json.dumps({"prompt": text, "max_tokens": answer, "temperature": 0.0})
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    content = response.read()
    if response.status != http.client.OK:
        raise RuntimeError(f"{PEER} answered {response.status}: {content.decode(errors='replace')[:500]}")
    usage: dict[str, int] = json.loads(content)["usage"]
    return usage


@contextmanager
def serving(folder: Path, rows: int) -> Iterator[int]:
    """A server over the folder that decodes so many rows together; gives its port.

    Raises:
        RuntimeError: it was not ready before it ended, or what was asked of it failed; the end of what it said is in
            the message.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    command = [sys.executable, "-c", START, "--model", str(folder), "--port", str(port)]
    command += ["--decode-concurrency", str(max(32, rows)), "--log-level", "WARNING"]
    alone = {**os.environ, "HF_HUB_OFFLINE": "1"}  # the folder has all that it needs
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, cwd=CHECKOUT, env=alone)
        try:
            while not _ready(process, port):
                time.sleep(WAIT_S)
            yield port
        except Exception as error:
            said.seek(0)
            raise RuntimeError(f"{error}; it said: {said.read()[-2000:]}") from error
        finally:
            process.terminate()
            process.wait()


def _ready(process: subprocess.Popen[bytes], port: int) -> bool:
    """Whether it takes requests; it does while it still loads, and says that it is unavailable once that has failed."""
    if process.poll() is not None:
        raise RuntimeError(f"{PEER} ended with {process.returncode}")
    connection = http.client.HTTPConnection("127.0.0.1", port)
    try:
        connection.request("GET", "/health")
        status = connection.getresponse().status
    except ConnectionError:
        return False
    finally:
        connection.close()
    if status != http.client.OK:
        raise RuntimeError(f"{PEER} is unavailable, {status}")
    return True
