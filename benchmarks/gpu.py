"""Decode steps, whole runs and a long prompt that joins, beside mlx-lm, on a GPU: `python -m benchmarks.gpu`.

Llama shapes with random bfloat16 weights: timing does not depend on values. Ours goes through backend (steps) or
gateway (runs, joins); the peer is `BatchGenerator`; `bare` is a lockstep loop over plain caches with argmax.
Everything of one table runs in one process, in turn, warm, medians.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx.utils import tree_map
from mlx_lm.generate import BatchGenerator
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.llama import Model, ModelArgs

import mlx_notebook as mn
from benchmarks.harness import Line, Report, compare, finish
from mlx_notebook.core.events import Decode, Prefill, PrefillPart, StepDone
from mlx_notebook.core.request import Request, RequestShape, SamplingOptions
from mlx_notebook.engine.mlx_backend import MlxBackend
from tests.small_models import tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PROMPT, ANSWER, VOCAB = 128, 96, 128_256


@dataclass(frozen=True)
class Shape:
    """A Llama's proportions."""

    layers: int
    hidden: int
    inner: int
    heads: int
    tied: bool


SHAPES = {
    "1B": Shape(16, 2048, 8192, 32, True),
    "8B": Shape(32, 4096, 14336, 32, False),
    "tiny": Shape(2, 512, 512, 8, True),  # to try this file on any machine
}


def build(name: str) -> Model:
    """A model of this shape with random bfloat16 weights."""
    shape = SHAPES[name]
    model = Model(
        ModelArgs(
            model_type="llama",
            hidden_size=shape.hidden,
            num_hidden_layers=shape.layers,
            intermediate_size=shape.inner,
            num_attention_heads=shape.heads,
            num_key_value_heads=8,
            rms_norm_eps=1e-5,
            vocab_size=VOCAB,
            rope_theta=500_000.0,
            max_position_embeddings=131_072,
            tie_word_embeddings=shape.tied,
        )
    )
    model.update(tree_map(lambda p: mx.random.normal(p.shape, dtype=mx.bfloat16) * 0.02, model.parameters()))
    mx.eval(model.parameters())
    model.eval()
    return model


def prompt(number: int, length: int = PROMPT) -> list[int]:
    """Tokens that no other row shares from the first on: a prefix must not spare anybody work."""
    return [(number * 7919 + i * 104_729) % 100_000 + 1 for i in range(length)]


def request(number: int, length: int = PROMPT, answer: int = 100_000) -> Request:
    """A greedy request without an end."""
    return Request(number, RequestShape(tuple(prompt(number, length)), SamplingOptions(max_tokens=answer)))


# ------------------------------------------------------------ (a) decode steps


def ours_steps(backend: MlxBackend, rows: int, steps: int) -> Callable[[], float]:
    """Open the rows; a function that times a step."""
    for number in range(rows):
        backend.open(request(number))
    parts = tuple(PrefillPart(number, 0, PROMPT, last=True) for number in range(rows))
    for at in range(0, rows, 32):
        done = backend.prefill(Prefill(parts[at : at + 32]))
        if done.errors:
            raise RuntimeError(next(iter(done.errors.values()))[1])
    ids = tuple(range(rows))

    def timed() -> float:
        began = time.perf_counter()
        for _ in range(steps):
            outcome = backend.decode(Decode(ids))
            if not isinstance(outcome, StepDone):
                raise RuntimeError(outcome.error[1])  # noqa: TRY004 - the step failed; its type only says so
        return (time.perf_counter() - began) / steps * 1e3

    return timed


def peer_steps(model: Any, rows: int, steps: int) -> Callable[[], float]:
    """The peer with all rows decoding; a function that times a step."""
    generator = BatchGenerator(model, max_tokens=100_000, completion_batch_size=rows, prefill_batch_size=min(rows, 32))
    generator.insert([prompt(number) for number in range(rows)])
    while len(generator.next()[1]) < rows:
        pass

    def timed() -> float:
        began = time.perf_counter()
        for _ in range(steps):
            generator.next()
        return (time.perf_counter() - began) / steps * 1e3

    return timed


def bare_steps(model: Any, rows: int, steps: int) -> Callable[[], float]:
    """A lockstep loop: plain caches, argmax, one step ahead of its reads."""
    cache = make_prompt_cache(model)
    tokens = mx.array([prompt(number) for number in range(rows)])
    held = [mx.argmax(model(tokens, cache=cache)[:, -1, :], axis=-1)]
    mx.eval(held)

    def timed() -> float:
        began = time.perf_counter()
        for _ in range(steps):
            following = mx.argmax(model(held[0][:, None], cache=cache)[:, -1, :], axis=-1)
            mx.async_eval(following)  # type: ignore[no-untyped-call]
            held[0].tolist()
            held[0] = following
        return (time.perf_counter() - began) / steps * 1e3

    return timed


def steps_table(
    name: str, model: Any, rows: Sequence[int], rounds: int, steps: int
) -> tuple[list[Line], dict[str, Any]]:
    """(a) for one shape."""
    lines: list[Line] = []
    samples: dict[str, Any] = {}
    bars = {1: 0.65 if name == "1B" else 0.85, 8: 0.7, 32: 0.5, 128: 0.5}
    for count in rows:
        backend = MlxBackend(model, tiny_tokenizer(), context_length=131_072)
        cases = {
            "ours": ours_steps(backend, count, steps),
            "BatchGenerator": peer_steps(model, count, steps),
            "bare": bare_steps(model, count, steps),
        }
        found: dict[str, list[dict[str, float]]] = {case: [] for case in cases}
        for index in range(rounds + 1):
            for case, timed in cases.items():
                value = {"step": timed()}
                if index:
                    found[case].append(value)
        for peer, bar in (("BatchGenerator", bars.get(count)), ("bare", 1.05)):
            lines.append(
                compare(
                    found,
                    "step",
                    ours="ours",
                    theirs=peer,
                    what=f"{name}, {count} rows, decode step",
                    unit="ms",
                    bar=bar,
                    more_is_better=False,
                )
            )
            print(name, count, peer, lines[-1].ours.median, lines[-1].theirs.median, lines[-1].ratio.median, flush=True)
        samples[f"{name} {count}"] = found
        for number in range(count):
            backend.drop(number)
        mx.clear_cache()
    return lines, samples


# ------------------------------------------------------------ (b) whole runs


def ours_run(gateway: mn.Gateway, rows: int, salt: int) -> float:
    """Tokens per second of a whole run through the gateway."""
    prompts = [prompt(salt * 1000 + number) for number in range(rows)]
    began = time.perf_counter()
    handles = gateway.submit(prompts, max_tokens=ANSWER, cache_prompt=False)
    made: int = sum(result.generated_tokens for result in handles.results())
    return made / (time.perf_counter() - began)


def peer_run(model: Any, rows: int, salt: int) -> float:
    """The same through BatchGenerator."""
    generator = BatchGenerator(model, max_tokens=ANSWER, completion_batch_size=max(32, rows), prefill_batch_size=8)
    began = time.perf_counter()
    left = len(generator.insert([prompt(salt * 1000 + number) for number in range(rows)]))
    made = 0
    while left:
        for response in generator.next()[1]:
            made += 1
            left -= response.finish_reason is not None
    return made / (time.perf_counter() - began)


def runs_table(name: str, model: Any, rows: Sequence[int], rounds: int) -> tuple[list[Line], dict[str, Any]]:
    """(b), all at once, for one shape."""
    lines: list[Line] = []
    samples: dict[str, Any] = {}
    bars = {32: 4.0, 128: 3.0}
    with mn.Gateway.from_loaded(model, tiny_tokenizer(), batch=max(rows)) as gateway:
        for count in rows:
            found: dict[str, list[dict[str, float]]] = {"ours": [], "BatchGenerator": []}
            for index in range(rounds + 1):
                mine = ours_run(gateway, count, index)
                with gateway.lease():
                    theirs = peer_run(model, count, index)
                if index:
                    found["ours"].append({"rate": mine})
                    found["BatchGenerator"].append({"rate": theirs})
            what = f"{name}, {count} requests of {PROMPT}+{ANSWER}, whole run"
            lines.append(
                compare(
                    found, "rate", ours="ours", theirs="BatchGenerator", what=what, unit="tokens/s", bar=bars.get(count)
                )
            )
            print(what, lines[-1].ours.median, lines[-1].theirs.median, lines[-1].ratio.median, flush=True)
            samples[f"{name} {count}"] = found
    return lines, samples


# ------------------------------------------------------------ (d) a long prompt joins


def ours_gaps(gateway: mn.Gateway, rows: int, long: int, salt: int) -> dict[str, float]:
    """Gaps between a running row's tokens while a long prompt joins a full batch, milliseconds."""
    times: list[float] = []
    gateway.submit([prompt(salt * 1000 + n) for n in range(rows - 2)], max_tokens=600, cache_prompt=False)
    watched = gateway.submit(
        prompt(salt * 1000 + 999),
        max_tokens=600,
        cache_prompt=False,
        on_token=lambda *_: times.append(time.perf_counter()),
    )
    while len(times) < 50:
        time.sleep(0.005)
    normal = statistics.median(b - a for a, b in itertools.pairwise(times))
    began = time.perf_counter()
    joiner = gateway.submit(prompt(salt * 1000 + 998, long), max_tokens=2, cache_prompt=False)
    joiner.result()
    ended = time.perf_counter()
    for handle in gateway.handles:
        handle.cancel()
    watched.exception()
    gateway.wait_idle()
    within = [t for t in times if began <= t <= ended]
    gaps = sorted(b - a for a, b in itertools.pairwise(within))
    return {"p99": gaps[int(len(gaps) * 0.99)] * 1e3, "worst": gaps[-1] * 1e3, "normal": normal * 1e3}


def peer_gaps(model: Any, rows: int, long: int, salt: int) -> dict[str, float]:
    """The same in BatchGenerator."""
    generator = BatchGenerator(model, max_tokens=100_000, completion_batch_size=rows, prefill_batch_size=8)
    generator.insert([prompt(salt * 1000 + n) for n in range(rows - 1)])
    while len(generator.next()[1]) < rows - 1:
        pass
    times = []
    for _ in range(50):
        generator.next()
        times.append(time.perf_counter())
    normal = statistics.median(b - a for a, b in itertools.pairwise(times))
    (joiner,) = generator.insert([prompt(salt * 1000 + 998, long)])
    times = [time.perf_counter()]
    while True:
        answered = generator.next()[1]
        if answered:
            times.append(time.perf_counter())
        if any(response.uid == joiner for response in answered):
            break
    gaps = sorted(b - a for a, b in itertools.pairwise(times))
    return {"p99": gaps[int(len(gaps) * 0.99)] * 1e3, "worst": gaps[-1] * 1e3, "normal": normal * 1e3}


def gaps_table(name: str, model: Any, rows: int, long: int, rounds: int) -> tuple[list[Line], dict[str, Any]]:
    """(d) for one shape."""
    found: dict[str, list[dict[str, float]]] = {"ours": [], "BatchGenerator": []}
    with mn.Gateway.from_loaded(model, tiny_tokenizer(), batch=rows) as gateway:
        for index in range(rounds + 1):
            mine = ours_gaps(gateway, rows, long, index)
            with gateway.lease():
                theirs = peer_gaps(model, rows, long, index)
            if index:
                found["ours"].append(mine)
                found["BatchGenerator"].append(theirs)
            print(name, "gaps", mine, theirs, flush=True)
    lines = [
        compare(
            found,
            measure,
            ours="ours",
            theirs="BatchGenerator",
            what=f"{name}, {measure} gap while {long} tokens join {rows - 1} rows",
            unit="ms",
            more_is_better=False,
        )
        for measure in ("p99", "worst")
    ]
    return lines, {f"{name} gaps": found}


def _device() -> str:
    info = mx.device_info()
    return ", ".join(str(info[key]) for key in ("device_name", "architecture") if key in info)


def main() -> int:
    """Measure what is asked for, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="1B", choices=sorted(SHAPES))
    parser.add_argument("--tables", default="abd")
    parser.add_argument("--rows", default="1,8,32,128")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--no-keep", action="store_true")
    options = parser.parse_args()
    model = build(options.shape)
    rows = [int(count) for count in options.rows.split(",")]
    lines: list[Line] = []
    samples: dict[str, Any] = {}
    tables: dict[str, Callable[[], tuple[list[Line], dict[str, Any]]]] = {
        "a": lambda: steps_table(options.shape, model, rows, options.rounds, options.steps),
        "b": lambda: runs_table(options.shape, model, [count for count in rows if count >= 8], options.rounds),
        "d": lambda: gaps_table(options.shape, model, 32, 6000, options.rounds),
    }
    report = Report(
        f"gpu_{options.shape}",
        f"Llama {options.shape} shape, bfloat16, on a GPU",
        lines,
        samples,
        {
            "shape": options.shape,
            "prompt": PROMPT,
            "answer": ANSWER,
            "device": _device(),
            "command": " ".join(sys.argv),
        },
    )
    for table in options.tables:
        more_lines, more_samples = tables[table]()
        lines += more_lines
        samples |= more_samples
        if not options.no_keep:
            report.save()  # after each: a lent GPU may be gone before the last
    return finish(report, keep=not options.no_keep)


if __name__ == "__main__":
    raise SystemExit(main())
