"""Measures whether a mixed stack takes the time of its layers: the bar is 2 % more.

    python benchmarks/mixed_stack.py [model=fla-gdn_h4_e88_4th_424x12] [bench.batch_size=32] ...

It times training steps of the mixed model, and of a model of each of its kinds of layers alone, as
deep as the mixed one: as in `mode=bench`, in interleaved rounds, replayed as CUDA graphs on a GPU.
A share n / depth of each step of one kind is what the mixed step should take: embedding, head and
optimizer count once then, too. The figure is the median over the rounds of measured over expected
time. Arguments are overrides of `mode=bench`. Exit status: 0 if it is within 2 %, else 1.
"""

from __future__ import annotations

import statistics
import sys
from contextlib import ExitStack

import torch

from elman.bench.build import step_subjects
from elman.bench.entries import entries
from elman.bench.rounds import time_rounds, totals
from elman.config.compose import compose_config

MODEL = "model=fla-gdn_h4_e88_4th_424x12"
ALWAYS = ("mode=bench", "bench.level=step", "bench.rounds=15")
BAR = 1.02


def main(typed: list[str]) -> int:
    """Time the steps, print every figure, and return the exit status."""
    chosen = [] if any(one.startswith("model=") for one in typed) else [MODEL]
    config = compose_config([*ALWAYS, *chosen, *typed])
    assert config.bench is not None
    model, device = config.model, torch.device("cuda" if torch.cuda.is_available() else "cpu")
    parts = model.parts()
    whole = [part.model_copy(update={"depth": model.depth}) for part in parts]
    found, notes = entries([model, *whole], ["auto"], device)
    for note in notes:
        print(note)
    with ExitStack() as stack:
        subjects, _ = step_subjects(config, found, device, stack)
        timed = time_rounds(subjects, config.bench.rounds, lambda done, total: None)
        mixed, *alone = (totals(one, of.parts) for one, of in zip(timed, subjects, strict=True))
    expected = [
        sum(part.depth / model.depth * seconds for part, seconds in zip(parts, each, strict=True))
        for each in zip(*alone, strict=True)
    ]
    ratio = statistics.median(one / other for one, other in zip(mixed, expected, strict=True))
    where = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    size = f"{config.bench.batch_size} rows of {config.bench.chunk_size}"
    print(f"{model.name}, {size}, {where}, {config.bench.rounds} rounds, medians in ms")
    for name, seconds in (("mixed", mixed), ("expected", expected)):
        print(f"  {name:10} {1e3 * statistics.median(seconds):9.3f}")
    for part, subject, seconds in zip(parts, subjects[1:], alone, strict=True):
        ms = 1e3 * statistics.median(seconds)
        print(f"  {part.cell:10} {ms:9.3f}  all {model.depth} layers; {part.depth} of the mixed")
        print(f"  {'':10} {'':9}  backend {subject.backend}, replayed: {subject.replayed}")
    print(f"mixed / expected: {ratio:.4f} (bar {BAR})")
    return 0 if ratio <= BAR else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
