"""Measures how long a step waits for its data: microseconds per ``next()``, median of 7 rounds.

    python benchmarks/data_wait.py [--step-ms 200] [--batch-size 32] [--chunk-size 512] [--path F]

There are two figures for each kind of batches, from interleaved rounds. ``back to back``: no work
between calls, so that each call waits for the whole read; this is the upper bound. ``behind a
step``: the main thread computes for ``--busy-ms`` between calls, so that the read ahead is running
or done.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from elman.data.batches import Batches, RandomBatches, StreamBatches
from elman.data.text import open_text
from elman.sections.training import DataConfig

ROUNDS = 7


def main() -> None:
    arguments = parse()
    config = DataConfig(path=arguments.path)
    with (
        open_text(config, arguments.chunk_size, print) as data,
        RandomBatches(data, arguments.batch_size, arguments.chunk_size, seed=0) as random,
        StreamBatches(data, arguments.batch_size, arguments.chunk_size, seed=0) as streams,
    ):
        print(f"{data.source.label}: {len(data.source)} bytes")
        cases = {
            (kind.kind, label): (kind, busy_ms, n_calls)
            for kind in (random, streams)
            for label, busy_ms, n_calls in (
                ("back to back", 0.0, 2000),
                ("behind a step", arguments.busy_ms, 50),
            )
        }
        timings: dict[tuple[str, str], list[float]] = {case: [] for case in cases}
        for _ in range(ROUNDS):
            for case, (batches, busy_ms, n_calls) in cases.items():
                timings[case].append(wait_us(batches, busy_ms, n_calls))
    for (kind, label), rounds in timings.items():
        report(f"{kind}, {label}", rounds, arguments.step_ms)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time spent waiting for data.")
    parser.add_argument("--path", help="file or glob; the default corpus if not given")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--chunk-size", type=int, default=512)
    parser.add_argument("--step-ms", type=float, default=200.0, help="step time to compare with")
    parser.add_argument("--busy-ms", type=float, default=5.0, help="work between two calls")
    return parser.parse_args()


def wait_us(batches: Batches, busy_ms: float, n_calls: int) -> float:
    """Return the mean microseconds spent in ``next()``."""
    work = np.ones((256, 256), dtype=np.float32)
    waited = 0.0
    for _ in range(n_calls):
        end = time.perf_counter() + busy_ms / 1000
        while time.perf_counter() < end:
            work @ work
        start = time.perf_counter()
        batches.next()
        waited += time.perf_counter() - start
    return waited / n_calls * 1e6


def report(name: str, rounds: list[float], step_ms: float) -> None:
    median = statistics.median(rounds)
    share = median / (step_ms * 1000)
    print(
        f"{name}: {median:.0f} us a batch (median of {len(rounds)}, "
        f"{min(rounds):.0f} to {max(rounds):.0f}), {share:.3%} of a step of {step_ms:g} ms"
    )


if __name__ == "__main__":
    main()
