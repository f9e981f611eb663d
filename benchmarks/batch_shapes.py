"""Two batches that cost a padded rectangle dear, beside `BatchGenerator`: `python -m benchmarks.batch_shapes`.

A large vocabulary over a small model: what is done with the logits weighs more than the layers. One long prompt among
short ones: in a rectangle every row pays for the longest.
"""

from __future__ import annotations

import sys
from functools import partial

from benchmarks.batching import OURS, PEER, Both, prompts_of, run_ours, run_peer, smollm2
from benchmarks.harness import Line, Report, Samples, compare, finish, interleave
from benchmarks.smollm2 import arguments

WORDS, LONG = "150,000 words", "one of 4,000"
WHAT = {
    WORDS: "8 x 28+128 tokens, small model, vocabulary of 150,000",
    LONG: "one prompt of 4,000 tokens, seven of 60, answers of 128, SmolLM2",
}
LENGTHS = {WORDS: [28] * 8, LONG: [4_000, *[60] * 7]}
BARS = {WORDS: 1.3, LONG: 2.0}
ANSWER, VOCABULARY = 128, 150_000


def lines(samples: Samples) -> list[Line]:
    """The table's lines from the measurements of both sides."""
    return [
        compare(
            samples,
            "rate",
            ours=f"{OURS}, {shape}",
            theirs=f"{PEER}, {shape}",
            what=what,
            unit="tokens/s",
            bar=BARS[shape],
        )
        for shape, what in WHAT.items()
    ]


def many_words() -> Both:
    """A Llama of two narrow layers with a large vocabulary, random weights: what it says does not matter here."""
    from mlx_notebook.models.backend_check import import_mlx

    mx = import_mlx()
    from tests.small_models import llama, tiny_tokenizer

    model = llama(VOCABULARY, 8_192)
    mx.eval(model.parameters())
    return Both.over(model, tiny_tokenizer())


def measured(both: Both, shape: str, rounds: int) -> Samples:
    """One shape on both sides; what takes minutes needs no warm-up."""
    prompts = prompts_of(both.tokenizer, LENGTHS[shape])
    cases = {
        f"{OURS}, {shape}": partial(run_ours, both, prompts, ANSWER),
        f"{PEER}, {shape}": partial(run_peer, both, prompts, ANSWER),
    }
    return interleave(cases, rounds=rounds, warmup=int(shape == WORDS))


def main() -> int:
    """Measure, print, keep."""
    options = arguments(__doc__, rounds=3)
    samples: Samples = {}
    for shape, make, rounds in ((WORDS, many_words, 3 * options.rounds), (LONG, smollm2, options.rounds)):
        both = make()
        try:
            samples |= measured(both, shape, rounds)
        finally:
            both.gateway.close()
    report = Report(
        "batch_shapes",
        "Large vocabularies, ragged lengths",
        lines(samples),
        samples,
        {"prompts": LENGTHS, "max_tokens": ANSWER, "vocabulary": VOCABULARY},
    )
    return finish(report, keep=not options.no_keep)


if __name__ == "__main__":
    sys.exit(main())
