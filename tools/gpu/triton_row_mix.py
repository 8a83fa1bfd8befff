"""M2RNN's Triton kernels against fp64, and their times: the part of ``triton`` for M2RNN.

Checks: outputs and all gradients in bf16 and fp32 against the fp64 reference, with NaN in every
tensor that the operators allocate, with and without resets, over the sizes that the kernels have;
that a second call and a replayed CUDA graph give the same bits. Times: bf16, B = 32 and T = 512,
the heads of conf/model/m2rnn.yaml, each pass replayed as a CUDA graph; and the plain loop over
time, forward and backward, of one call that is not replayed.
"""

from __future__ import annotations

import itertools
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

from elman.ops.matrix_state.row_mix import custom_op
from elman.ops.matrix_state.row_mix.launch import NAMES
from elman.ops.matrix_state.row_mix.op import row_mix_recurrence
from tools.gpu.instruments import (
    distance,
    equal,
    in_turn,
    poisoned,
    recorded,
    replayed,
    seconds,
)
from tools.gpu.job import Job

NAME = "M2RNN"
BATCH, TIME, HEADS = 32, 512, 40
LIMITS = {torch.bfloat16: 2e-2, torch.float32: 1e-4}
CHECKED = ((16, 16), (5, 7), (20, 33), (32, 32), (16, 64), (32, 64))
"""Value rows and key columns."""
TIMED = ((16, 16), (16, 64), (32, 32))
CALLS = ((2, 1, False), (3, 67, False), (1, 37, False), (2, 37, True))
"""Batch, steps, and whether there are resets."""
Leaves = dict[str, Tensor]


def checks(job: Job) -> None:
    """Compare every size with fp64."""
    for (rows, columns), dtype in itertools.product(CHECKED, LIMITS):
        row = {"cell": NAME, "rows": rows, "columns": columns, "dtype": str(dtype)}
        job.attempt(row, partial(compared, rows, columns, dtype))


def compared(rows: int, columns: int, dtype: torch.dtype) -> dict[str, Any]:
    """Return the largest error over several shapes, with what it belongs to."""
    worst: tuple[float, str] = (0.0, "nothing")
    for batch, steps, with_resets in CALLS:
        leaves = drawn((batch, steps, 3, rows, columns), dtype)
        resets_bt = torch.rand(batch, steps, device="cuda") < 1 / 8 if with_resets else None
        exact = run({n: leaf.double() for n, leaf in leaves.items()}, "reference", resets_bt)
        with poisoned():
            found = run(leaves, "triton", resets_bt)
        for name, wanted in exact.items():
            error = distance(found[name], wanted)
            worst = max(worst, (error, f"{name} B={batch} T={steps}"))
    leaves = drawn((3, 67, 3, rows, columns), dtype)
    call = partial(run, leaves, "triton")
    first = call()
    same = {"repeat_equal": equal(first, call()), "graph_equal": equal(first, replayed(call))}
    passed = worst[0] <= LIMITS[dtype] and all(same.values())
    return {"error": worst[0], "of": worst[1], **same, "passed": passed}


def drawn(sizes: tuple[int, int, int, int, int], dtype: torch.dtype) -> Leaves:
    """Return the tensors of a call by name; sizes are B, T, heads, value rows and key columns."""
    batch, steps, heads, rows, columns = sizes
    torch.manual_seed(1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda")

    widths = {"q": columns, "k": columns, "v": rows, "gate": rows}
    found = {name: normal(batch, steps, heads, n).to(dtype) for name, n in widths.items()}
    found["decay"] = torch.rand(batch, steps, heads, device="cuda")
    found |= {"mix": normal(heads, rows, rows) / rows**0.5, "residual": normal(heads, rows)}
    return found | {"first": normal(batch, heads, rows, columns) / 2}


def run(leaves: Leaves, backend: str, resets_bt: Tensor | None = None) -> Leaves:
    """Return outputs and gradients by name."""
    given = {name: leaf.detach().clone().requires_grad_() for name, leaf in leaves.items()}
    sequences = {name: given[name] for name in NAMES}
    out_bthv, last_bhvn = row_mix_recurrence(
        sequences,
        given["mix"],
        given["residual"],
        given["first"],
        backend=backend,
        resets_bt=resets_bt,
    )
    outputs = {"out": out_bthv, "last": last_bhvn}
    pulls = [pulled(one) for one in outputs.values()]
    found = torch.autograd.grad(list(outputs.values()), list(given.values()), pulls)
    named = {f"d {name}": gradient for name, gradient in zip(given, found, strict=True)}
    return {name: one.detach() for name, one in outputs.items()} | named


def pulled(like: Tensor) -> Tensor:
    """Return the gradient of an output: the same in every precision, and drawn from no generator.

    A recorded graph could not draw one.
    """
    count = torch.arange(like.numel(), device="cuda", dtype=torch.float64)
    return (count * 0.7).sin().view(like.shape).bfloat16().to(like.dtype)


def times(job: Job) -> None:
    """Time both passes in every size, in turn, and the plain loop once."""
    for rows, columns in TIMED:
        row = {"cell": NAME, "rows": rows, "columns": columns, "heads": HEADS}
        leaves = drawn((BATCH, TIME, HEADS, rows, columns), torch.bfloat16)
        began = time.perf_counter()
        graphs = passes(leaves)
        job.report(row | {"backend": "triton", "first_s": round(time.perf_counter() - began, 2)})
        for name, us in in_turn(graphs, TIME).items():
            job.report(row | {"backend": "triton", "pass": name, "us_a_step": us})
        graphs.clear()
        run(leaves, "reference")
        taken = seconds(partial(run, leaves, "reference"))
        us = round(taken * 1e6 / TIME, 2)
        job.report(row | {"backend": "reference", "pass": "both", "us_a_step": us})


def passes(leaves: Leaves) -> dict[str, Any]:
    """Return both passes as graphs, after a first call of each."""
    tensors = [leaves[name] for name in (*NAMES, "mix", "residual", "first")]
    forwards = partial(custom_op.ROW_MIX.operator, True, *tensors, None)
    out_bthv, _, checkpoints = forwards()
    dout = torch.randn_like(out_bthv)
    backwards = partial(
        custom_op.ROW_MIX.backward_operator, dout, None, *tensors, None, checkpoints
    )
    backwards()
    torch.cuda.synchronize()
    return {"forward": recorded(forwards), "backward": recorded(backwards)}
