"""The experiment for the residual stream's add and norm, which every ``rms`` model has.

The add and norm comes between the layers of every cell, so it has its own check.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from elman.kernels import driver
from elman.kernels.compiler import compiler_problem
from elman.models.backends import AUTO, REFERENCE, TORCH, norm_backend
from elman.ops.add_norm import cuda, op
from elman.parity.experiment import EXACT, Run, autocast_for, poisoned
from elman.parity.seeded import gradients

NAME = "add_norm"
"""Name in the tables, in the place of a cell's name."""
CPU, CUDA = "cpu", "cuda"
_ROWS = 35
_SMALL = 2.0**-9  # a power of two causes no rounding; its square is below eps
# Widths: odd; a multiple of a vector; odd with several warps; too long for a block's registers.
_WIDTHS = (37, 40, 601, 4100)


@dataclass(frozen=True)
class NormShape:
    """One check of the add and norm.

    Args:
        name: Place of the norm in a model, or what is special about its rows.
        rows: B T.
        width: Model width.
        branch: What is added: ``own`` (in the run's precision), ``fp32`` or ``none``.
        carried: Whether the sum is used later and so has a gradient; not so at the last norm.
        turned: Whether stream and branch are transposed views.
        size: Size of the numbers in the stream and the branch; eps matters only for small ones.
    """

    name: str
    rows: int
    width: int
    branch: str = "own"
    carried: bool = True
    turned: bool = False
    size: float = 1.0

    def describe(self) -> str:
        """Return the sizes in one line, for people."""
        return f"rows={self.rows} dim={self.width}"


class NormExperiment:
    """Stream, branch, gain and incoming gradients, with the same numbers in every precision.

    Stream, gain and the sum's gradient are fp32 in every run, so they have fp32 values. The branch
    and the norm's gradient are rounded to bf16.

    Args:
        shape: Sizes.
        seed: Seed of all numbers; torch's global generators do not change.
    """

    def __init__(self, shape: NormShape, seed: int) -> None:
        self.shape = shape
        generator = torch.Generator().manual_seed(seed)

        def drawn(*sizes: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.randn(sizes, generator=generator).to(dtype).double()

        sizes = (1, shape.rows, shape.width)
        self._inputs = {"stream": drawn(*sizes) * shape.size}
        if shape.branch != "none":
            self._inputs["branch"] = drawn(*sizes, dtype=torch.bfloat16) * shape.size
        if shape.turned:
            self._inputs = {name: _turned(one) for name, one in self._inputs.items()}
        self._inputs["gain"] = (1 + drawn(shape.width) / 2).float().double()
        self._incoming = {"sum": drawn(*sizes), "normed": drawn(*sizes, dtype=torch.bfloat16)}
        if shape.turned:
            self._incoming = {name: _turned(one) for name, one in self._incoming.items()}

    def run(self, run: Run) -> dict[str, Tensor]:
        """Return outputs and gradients by name, in fp64 on the CPU.

        ``sum`` if there is a branch, ``normed``, and ``d`` with the name of every input.
        """
        leaves = {
            name: tensor.to(run.device, self._dtype(name, run), copy=True).requires_grad_()
            for name, tensor in self._inputs.items()
        }
        with autocast_for(run), poisoned():
            total_btd, normed_btd = op.add_rms_norm(
                leaves["stream"],
                leaves.get("branch"),
                leaves["gain"],
                _narrow(run),
                backend=run.backend,
            )
            outputs = {"normed": normed_btd}
            if "branch" in leaves:
                outputs["sum"] = total_btd
            reached = [name for name in outputs if name == "normed" or self.shape.carried]
            found = gradients(
                [outputs[name] for name in reached],
                list(leaves.values()),
                [self._incoming[name].to(run.device, outputs[name].dtype) for name in reached],
            )
        outputs |= {f"d {name}": grad for name, grad in zip(leaves, found, strict=True)}
        return {name: tensor.detach().double().cpu() for name, tensor in outputs.items()}

    def rounding(self, exact: Run, own: Run) -> dict[str, float]:
        """Return nothing: no gradient of a norm nearly cancels."""
        return {}

    def precision_of(self, name: str, run: Run) -> str:
        """Return the precision whose tolerance applies to a result.

        All inputs are exact in every precision, so only a bf16 result has bf16 rounding.
        """
        rounded = name == "normed" or (name == "d branch" and self.shape.branch == "own")
        return "fp32" if run.precision == "bf16" and not rounded else run.precision

    def _dtype(self, name: str, run: Run) -> torch.dtype:
        if run.precision == EXACT:
            return torch.float64
        narrow = name == "branch" and self.shape.branch == "own"
        return _narrow(run) if narrow else torch.float32


def norm_shapes(width: int, runs: Sequence[Run], *, quick: bool) -> list[NormShape]:
    """Return the checks at a model's width: each place of its norms, and odd sizes.

    Args:
        width: Model width.
        runs: The ways of running it; a GPU gets enough rows for more than two rounds of blocks.
        quick: Only the places in a model, at its own width.
    """
    on_gpu = next((run for run in runs if run.backend == CUDA), None)

    def rows(columns: int) -> int:
        return _ROWS if on_gpu is None else 2 * _resident(columns, on_gpu) + 1

    own = NormShape("between layers", rows(width), width)
    shapes = [
        own,
        replace(own, name="first layer", branch="none"),
        replace(own, name="last norm", carried=False),
        replace(own, name="fp32 branch", branch="fp32"),
        replace(own, name="small numbers", size=_SMALL),
    ]
    if quick or all(run.backend == REFERENCE for run in runs):
        return shapes
    shapes += [replace(own, name="one row", rows=1), replace(own, name="turned", turned=True)]
    return shapes + [NormShape(f"width {n}", rows(n), n) for n in _WIDTHS if n != width]


def _resident(width: int, run: Run) -> int:
    """Return how many blocks a GPU runs at a time; with one more row, a block gets a second."""
    device = torch.device(run.device)
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    tile_config = cuda.tile_config_of(width, True, torch.float32, torch.float32)
    return cuda.MULTIPROCESSORS(device) * tile_config.blocks


def norm_runs(requested: str = AUTO) -> tuple[list[Run], list[str]]:
    """Return every way of computing the norms on this machine, and notes on what cannot run.

    Args:
        requested: As ``kernels.backend``.

    Raises:
        UserError: a backend is requested by name, and its kernels cannot be built or run here.
    """
    runs = [Run(REFERENCE, "cpu", "fp32")]
    if requested in (REFERENCE, TORCH):
        return runs, []
    notes = []
    for backend, precisions in ((CPU, ("fp32",)), (CUDA, ("fp32", "bf16"))):
        # Beside kernels of another name on a GPU, the norms still have that of CUDA.
        if requested == CPU != backend or (backend == CPU and requested not in (AUTO, CPU)):
            continue
        problem = _problem(backend)
        if problem is not None and requested != backend:
            notes.append(f"not checked: the {_NAMES[backend]} kernel of {NAME}: {problem}")
            continue
        assert norm_backend(requested, backend) == backend
        runs += [Run(backend, backend, precision) for precision in precisions]
    return runs, notes


_NAMES = {CPU: "CPU", CUDA: "CUDA"}


def _problem(backend: str) -> str | None:
    """Return why a kernel cannot run here, or None."""
    if backend == CPU:
        return compiler_problem()
    return driver.cuda_problem() if torch.cuda.is_available() else "torch sees no GPU here"


def compile_norm(shape: NormShape, run: Run) -> None:
    """Call the operator once on one row, so that its kernels are compiled; threads may do so."""
    stream_btd = torch.zeros(1, 1, shape.width, device=run.device)
    branch_btd = None
    if shape.branch != "none":
        dtype = _narrow(run) if shape.branch == "own" else torch.float32
        branch_btd = torch.zeros_like(stream_btd, dtype=dtype)
    with torch.no_grad():
        op.add_rms_norm(stream_btd, branch_btd, stream_btd[0, 0], _narrow(run), backend=run.backend)


def _narrow(run: Run) -> torch.dtype:
    """Return the dtype of the norm's result."""
    if run.precision == EXACT:
        return torch.float64
    return torch.bfloat16 if run.precision == "bf16" else torch.float32


def _turned(tensor_btd: Tensor) -> Tensor:
    """Return the same numbers as a transposed view: row neighbors are not adjacent in memory."""
    return tensor_btd.transpose(1, 2).contiguous().transpose(1, 2)
