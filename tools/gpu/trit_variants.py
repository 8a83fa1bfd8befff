"""Temporary: times tiles of the Triton kernels; ranks them. Usage: trit_variants.py OUT [SECONDS]."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import gpu_triton as G
import torch
from elman.ops.matrix_state.triton import launch
from elman.ops.matrix_state.triton.spec import tile_of

# rows, warps, group, 1 spread + 2 joined
FORWARD = {
    16: ((4, 1, 8, 3), (2, 1, 8, 3), (8, 1, 8, 3)),
    32: ((4, 1, 8, 3), (2, 1, 8, 3)),
    64: ((4, 1, 4, 3), (2, 1, 8, 3), (2, 1, 4, 3)),
    128: ((4, 1, 4, 3), (2, 1, 4, 3), (1, 1, 4, 3)),
}
BACKWARD = {
    16: ((4, 1, 8, 3), (4, 1, 4, 3), (8, 1, 8, 3), (2, 1, 8, 3)),
    32: ((4, 1, 4, 3), (4, 1, 8, 3), (2, 1, 4, 3), (8, 2, 4, 3)),
    64: ((4, 1, 4, 3), (4, 1, 4, 1), (2, 1, 4, 3), (8, 2, 4, 3)),
    128: ((4, 1, 2, 3), (2, 1, 4, 3), (16, 4, 2, 3), (8, 4, 2, 3), (8, 2, 2, 3)),
}
MANY_FORWARD = {
    16: ((16, 1, 4, 0), (16, 1, 8, 0), (8, 1, 8, 1)),
    32: ((4, 1, 4, 3), (8, 1, 4, 3), (16, 2, 4, 3)),
    64: ((4, 1, 4, 3), (8, 1, 4, 3), (16, 4, 4, 3)),
    128: ((4, 1, 4, 3), (8, 2, 4, 3)),
}
MANY_BACKWARD = {
    16: ((16, 1, 2, 3), (16, 1, 4, 1), (16, 1, 2, 0), (8, 1, 2, 3)),
    32: ((16, 2, 2, 3), (8, 1, 2, 3), (16, 4, 2, 3)),
    64: ((16, 4, 2, 3), (8, 2, 2, 3), (4, 1, 2, 3)),
    128: ((16, 4, 2, 3), (8, 4, 2, 3), (4, 1, 2, 3)),
}


def jobs():
    for number in range(5):
        for n in (16, 64, 32, 128):
            for cell in ("E70", "E72", "E88"):
                tables = (MANY_FORWARD, MANY_BACKWARD) if cell == "E88" else (FORWARD, BACKWARD)
                for back, table in enumerate(tables):
                    if number < len(table[n]):
                        yield cell, n, back, table[n][number]


def use(job):
    _, _, back, (rows, warps, group, spread) = job

    def chosen(plan, *, backward):
        found = tile_of(plan, backward=backward)
        if backward != bool(back):
            return found
        tiles = -(-plan.rows // rows)
        found = replace(found, rows=rows, warps=warps, row_tiles=tiles, group=group)
        return replace(found, spread=bool(spread % 2), joined=spread >= 2)

    launch.tile_of = chosen
    launch._tile.cache_clear()


def plan_of(job):
    cell, n = job[:2]
    return G.plan_of(cell, n, G.HEADS[n] if cell == "E88" else 1)


def one_pass(job):
    """Return a call of the pass alone; the other pass is not run but for its checkpoints."""
    plan, leaves = plan_of(job), None
    leaves = G.drawn(plan, G.BATCH, G.TIME, torch.bfloat16, first=False)
    sources = [leaf for name, leaf in leaves.items() if name.startswith("source")]
    parameters = [leaves[name] for name in plan.parameter_names]
    forwards = lambda: G.custom_op.matrix_state(  # noqa: E731
        plan.text, "triton", True, sources, parameters, None, None
    )
    if not job[2]:
        return forwards
    segment = launch.segment(plan, G.BATCH, torch.bfloat16)
    shape = ((G.TIME - 1) // segment, G.BATCH, plan.heads, plan.rows, plan.columns)
    from elman.ops.matrix_state.abi import kept_dtype

    kept = torch.randn(shape, device="cuda").mul(0.3).to(kept_dtype(plan, torch.bfloat16))
    dout = torch.randn(G.BATCH, G.TIME, plan.heads, plan.rows, device="cuda").bfloat16()
    return lambda: G.custom_op.matrix_state_backward(
        plan.text, "triton", dout, None, sources, parameters, None, kept, None
    )


def warm(job):
    use(job)
    try:
        one_pass(job)()
        torch.cuda.synchronize()
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]
    return ""


CUDA = (("E88", 32), ("E88", 64), ("E88", 128), ("E88", 16))


def warm_cuda(job):
    G.passes(plan_of(job), "cuda")
    torch.cuda.synchronize()


def check(given):
    """Compare with fp64, with the chosen tiles; several warps, spread or not."""
    cell, n, back_tile, forward_tile = given

    def chosen(plan, *, backward):
        rows, warps, group, spread = back_tile if backward else forward_tile
        found = tile_of(plan, backward=backward)
        tiles = -(-plan.rows // rows)
        found = replace(found, rows=rows, warps=warps, row_tiles=tiles, group=group)
        return replace(found, spread=bool(spread % 2), joined=spread >= 2)

    launch.tile_of = chosen
    launch._tile.cache_clear()
    try:
        plan = G.plan_of(cell, n, 1)
        worst = (0.0, "")
        leaves = G.drawn(plan, 2, 37, torch.bfloat16, first=False)
        exact = G.run(plan, {k: v.double() for k, v in leaves.items()}, "reference")
        found = G.run(plan, leaves, "triton")
        for name, wanted in exact.items():
            worst = max(worst, (G.distance(found[name], wanted, wanted.norm()), name))
        return {"what": "check", "cell": cell, "n": n, "back": back_tile, "error": worst[0]} | {
            "of": worst[1],
            "passed": worst[0] < 2e-2,
        }
    except Exception as error:
        return {"what": "check", "cell": cell, "n": n, "error": f"{type(error).__name__}: {error}"[:300]}


CHECKS = [
    ("E70", 16, (4, 1, 8, 3), (2, 1, 8, 3)),
    ("E70", 64, (4, 1, 4, 3), (2, 1, 4, 3)),
    ("E72", 32, (8, 2, 4, 3), (2, 1, 4, 3)),
    ("E72", 16, (4, 1, 4, 3), (4, 1, 4, 3)),
    ("E88", 16, (16, 1, 2, 0), (16, 1, 4, 0)),
    ("E88", 32, (16, 2, 2, 3), (8, 1, 4, 3)),
]


def main():
    out, limit = sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 140.0
    began, everything = time.time(), list(jobs())
    only = os.environ.get("ONLY", "")
    if only:
        everything = [j for j in everything if f"{j[0]}" in only.split(",")]
    stream = open(out, "a")

    def write(row):
        print(json.dumps(row), flush=True)
        stream.write(json.dumps(row) + "\n")
        stream.flush()

    from multiprocessing import get_context

    pool = ProcessPoolExecutor(15, mp_context=get_context("spawn"))
    checks = [] if only else [pool.submit(check, one) for one in CHECKS]
    warmed = [pool.submit(warm, job) for job in everything[:45]]
    cudas = [] if only else [pool.submit(warm_cuda, one) for one in CUDA]
    warmed += [pool.submit(warm, job) for job in everything[45:]]
    graphs = {}
    torch.zeros(1, device="cuda")
    for job, done in itertools.zip_longest(everything, warmed):
        left = limit - (time.time() - began)
        row = {"what": "tile", "cell": job[0], "n": job[1], "pass": "fb"[job[2]], "tile": job[3]}
        try:
            problem = done.result(timeout=max(left - 10, 0.1))
        except Exception as error:
            problem = f"not in time: {type(error).__name__}"
        if problem:
            write(row | {"error": problem})
            continue
        use(job)
        graphs[job] = G.recorded(one_pass(job))[0]
    for one in checks:
        try:
            write(one.result(timeout=max(limit - (time.time() - began) - 5, 0.1)))
        except Exception as error:
            write({"what": "check", "error": type(error).__name__})
    for (cell, n), done in zip(CUDA, cudas, strict=False):
        try:
            done.result(timeout=max(limit - (time.time() - began) - 10, 0.1))
        except Exception as error:
            write({"what": "cuda", "n": n, "error": type(error).__name__})
            continue
        for name, (graph, _) in G.passes(plan_of((cell, n)), "cuda").items():
            graphs[(cell, n, int(name == "backward"), "cuda")] = graph
    pool.shutdown(wait=False, cancel_futures=True)
    for job, graph in graphs.items():
        if time.time() - began > limit:
            break
        taken = sorted(G.seconds(graph.replay) * 1e6 / G.TIME for _ in range(9))
        row = {"what": "tile", "cell": job[0], "n": job[1], "pass": "fb"[job[2]], "tile": job[3]}
        write(row | {"us_a_step": round(taken[4], 4), "least": round(taken[0], 4)})
    write({"what": "end", "s": round(time.time() - began, 1)})
    os._exit(0)


if __name__ == "__main__":
    main()
