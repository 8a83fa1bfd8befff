"""Measures checkpoints of every K-th state on a CPU: their time, and bytes for the backward pass.

    python benchmarks/kept_states.py [--cell e73cp] [--shape 8x64] [--steps 1,8,16,32,64] [--busy]

K = 1 stores every state. Bytes count the states that the forward pass stores, without its inputs,
which are the same for every K. Times are of forward with backward: medians of interleaved rounds,
with the fastest in brackets.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import torch
from matrix_loop import make_case, seconds  # type: ignore[import-not-found]

from elman.ops.matrix_state.custom_op import KERNELS


def main() -> None:
    given = parse()
    clock = time.process_time if given.busy else time.perf_counter
    if given.busy:
        torch.set_num_threads(1)
    heads, n = map(int, given.shape.split("x"))
    case = make_case(given.cell, given.batch_size, given.chunk_size, heads, n)
    intervals = [int(steps) for steps in given.steps.split(",")]
    chosen = KERNELS["cpu"].segment(case.plan, given.batch_size, torch.float32)
    times: dict[int, list[float]] = {steps: [] for steps in intervals}
    for _ in range(given.rounds + 1):  # the first round warms up
        for steps, found in times.items():
            every = replace(KERNELS["cpu"], segment=lambda *_, steps=steps: steps)
            KERNELS["cpu"] = every
            found.append(1e3 * seconds(lambda: case.both("cpu"), clock))
    print(
        f"{given.cell}, {given.shape}, B={given.batch_size} T={given.chunk_size}, "
        f"{torch.get_num_threads()} threads; the engine chooses K = {chosen}\n\n"
        "| K | kept states | forward with backward, ms | over K = "
        f"{intervals[0]} |\n|---|---|---|---|"
    )
    base = statistics.median(times[intervals[0]][1:])
    state = 4 * given.batch_size * heads * n * n
    for steps, found in times.items():
        middle = statistics.median(found[1:])
        kept = state * ((given.chunk_size - 1) // steps) / 1e6
        cells = (f"{kept:.1f} MB", f"{middle:.1f} ({min(found[1:]):.1f})", f"{middle / base:.3f}x")
        print(f"| {steps} | {' | '.join(cells)} |")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Time and memory by the distance of kept states.")
    parser.add_argument("--cell", default="e73cp", help="as benchmarks/matrix_loop.py names it")
    parser.add_argument("--shape", default="8x64", help="heads x n_state")
    parser.add_argument("--steps", default="1,8,16,32,64", help="distances, separated by commas")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--chunk-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--busy", action="store_true", help="CPU time of one thread")
    return parser.parse_args()


if __name__ == "__main__":
    main()
