"""Measures how fast subword tokens are encoded, and how long steps wait for them.

    python benchmarks/tokens.py [--tokenizer bpe] [--vocab-size 8192] [--rate 500000]

``encoding``: tokens a second of windows at random places, back to back, with 1, 2, 4 and 8 threads;
median of 5 rounds in turn. ``wait``: the share of the time that a loop waits in ``next()`` if its
steps use up ``--rate`` tokens a second. A step sleeps in the main thread, as one that waits for a
GPU, or computes with ``--busy``. The share counts as in ``data_wait_share`` of a run; it has the
threads that a run has (half as many as CPUs, 1 to 8).
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from elman.base.cpus import usable_cpus
from elman.data.batches import RandomBatches
from elman.data.text import Data, open_text
from elman.data.token_windows import TokenReader, encoding_threads
from elman.sections.training import BPE, DataConfig

ROUNDS = 5
THREADS = (1, 2, 4, 8)


def main() -> None:
    arguments = parse()
    size = arguments.vocab_size if arguments.tokenizer == BPE else None
    config = DataConfig(path=arguments.path, tokenizer=arguments.tokenizer, vocab_size=size)
    with open_text(config, arguments.chunk_size, print) as data:
        tokenizer = data.describe()["tokenizer"]
        print(
            f"{data.source.label}: {len(data.source):,} bytes; {tokenizer['vocab_size']:,} tokens "
            f"of {tokenizer['name']}, {tokenizer['bytes_per_token']:.2f} bytes each; "
            f"{len(usable_cpus())} CPUs; batches of {arguments.batch_size} x "
            f"{arguments.chunk_size}"
        )
        measure_encoding(data, arguments)
        measure_wait(data, arguments)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Speed of encoding, and time spent waiting.")
    parser.add_argument("--path", help="file or glob; the default corpus if not given")
    parser.add_argument("--tokenizer", default=BPE, help="as data.tokenizer")
    parser.add_argument("--vocab-size", type=int, default=8192, help="with bpe")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--chunk-size", type=int, default=512)
    parser.add_argument("--rate", type=float, default=500_000, help="tokens a second of the steps")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long the steps go on")
    parser.add_argument("--busy", action="store_true", help="compute in the steps, do not sleep")
    return parser.parse_args()


def measure_encoding(data: Data, arguments: argparse.Namespace) -> None:
    """Print the rate of windows at random places, for each number of threads."""
    assert data.tokenizer is not None
    threads = [number for number in THREADS if number <= len(usable_cpus())]
    readers = [TokenReader(data.source, data.train_bytes, data.tokenizer, n) for n in threads]
    rates: dict[int, list[float]] = {number: [] for number in threads}
    random = np.random.default_rng(0)
    for _ in range(ROUNDS):
        for number, reader in zip(threads, readers, strict=True):
            offsets_b = random.integers(data.train_bytes, size=arguments.batch_size)
            began = time.perf_counter()
            rows = reader.gather(offsets_b, arguments.chunk_size + 1)
            rates[number].append(rows.size / (time.perf_counter() - began))
    for reader in readers:
        reader.close()
    for number, found in rates.items():
        print(
            f"encoding, {number} threads: {statistics.median(found):,.0f} tok/s "
            f"({min(found):,.0f} to {max(found):,.0f}), "
            f"{statistics.median(found) / number:,.0f} for each thread"
        )


def measure_wait(data: Data, arguments: argparse.Namespace) -> None:
    """Print the share of the time that steps of a given rate wait for data."""
    step = arguments.batch_size * arguments.chunk_size / arguments.rate
    work = np.ones((256, 256), dtype=np.float32)
    waits: list[float] = []
    with RandomBatches(data, arguments.batch_size, arguments.chunk_size, seed=0) as batches:
        batches.next()
        began = time.perf_counter()
        while time.perf_counter() - began < arguments.seconds:
            before = time.perf_counter()
            batches.next()
            after = time.perf_counter()
            waits.append(after - before)
            while arguments.busy and time.perf_counter() - after < step:
                work @ work
            time.sleep(max(0.0, step - (time.perf_counter() - after)))
        total = time.perf_counter() - began
    print(
        f"wait, steps of {step * 1e3:.1f} ms ({arguments.rate:,.0f} tok/s), "
        f"{encoding_threads()} threads: {sum(waits) / total:.3%} of the time, longest "
        f"{max(waits) * 1e3:.2f} ms, over {len(waits)} steps"
    )


if __name__ == "__main__":
    main()
