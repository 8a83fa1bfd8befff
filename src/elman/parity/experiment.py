"""One layer with fixed weights, inputs and incoming gradients, run by any backend.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from elman.kernels.packages import importable
from elman.models.build import layer_class
from elman.models.cells.common.mixer import Mixer
from elman.models.cells.declaration import Cell
from elman.models.state import State
from elman.parity.seeded import gradients
from elman.parity.shapes import Shape

# Steps that lead to the first state, so that it is a state that the cell can really reach.
_HISTORY = 5
# Inputs for which the rounding of the reference is measured.
_DRAWS = 4
_CATCHING_UP = 30
_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.float32,
}


@dataclass(frozen=True)
class Run:
    """One way of computing a layer.

    Args:
        backend: Name of the backend.
        device: Type of the device.
        precision: ``fp64``, ``fp32``, ``tf32`` (fp32 whose products may round their factors) or
            ``bf16`` (fp32 weights under autocast, as in training).
    """

    backend: str
    device: str
    precision: str


EXACT = "fp64"


class Experiment:
    """A layer and its inputs, in fp64, with numbers that are the same in every precision.

    All numbers are rounded to bf16 once, so that all precisions compute the same problem. Every
    parameter is shifted at random, because a projection that starts at zero, equal gains or a
    symmetric matrix would hide wrong gradients (lm-and-training specification 7).

    Args:
        cell: The cell.
        shape: Sizes.
        seed: Seed of all numbers; torch's global generators do not change.
        device: Device that computes the numbers that come from the layer itself, in fp64.
    """

    def __init__(self, cell: Cell, shape: Shape, seed: int, device: str = "cpu") -> None:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            # torch.manual_seed would also seed the GPUs' generators, which are not used here.
            torch.default_generator.manual_seed(seed)
            self.layer = _layer(cell, shape).to(device)
            # Not by a kernel: it is yet to be checked, or even to be compiled.
            _set_backend(self.layer, cell.backends[0])
            self.x_btd = _input(shape).to(device)
            past_btd = _rounded(torch.randn(shape.batch, _HISTORY, shape.dim).double()).to(device)
            self.resets_bt = _resets(shape, device) if shape.resets else None
            self.state: State | None = None
            if shape.initial:
                _, state = self.layer(past_btd)
                self.state = {name: _rounded(part) for name, part in state.items()}
            y_btd, last = self.layer(self.x_btd, self.state, self.resets_bt)
            self.incoming = [
                _rounded(torch.randn(out.shape, dtype=out.dtype)).to(device)
                for out in (y_btd, *last.values())
            ]

    def run(self, run: Run) -> dict[str, Tensor]:
        """Return outputs and gradients by name, in fp64 on the CPU.

        ``y``, ``S last`` and the other parts of the last state; ``d x``, ``d S first``, and ``d``
        with the name of every trained parameter.
        """
        layer = self._layer_for(run)
        inputs = {"x": _placed(self.x_btd, run.device, _DTYPES[run.precision])}
        state = None
        if self.state is not None:
            state = self._first_state(layer, run)
            inputs |= {f"{name} first": part for name, part in state.items()}
        with autocast_for(run), poisoned(), products(rounded=run.precision == "tf32"):
            y_btd, last = layer(inputs["x"], state, self._resets_on(run.device))
            outputs = {"y": y_btd} | {f"{name} last": part for name, part in last.items()}
            gradients = self._gradients(outputs, inputs | trained(layer))
        return {name: t.detach().double().cpu() for name, t in (outputs | gradients).items()}

    def rounding(self, exact: Run, own: Run) -> dict[str, float]:
        """Return the absolute error that a way of running makes by rounding, of each result.

        It is the root mean square over inputs that differ by a hundredth: a single error may be
        small by chance. The size of what is added up shows in it, also where the sum is nearly 0.

        Args:
            exact: The way of running that rounds nothing.
            own: The way of running that rounds.
        """
        generator = torch.Generator().manual_seed(_DRAWS)
        squares: dict[str, float] = {}
        for _ in range(_DRAWS):
            other = copy.copy(self)
            change = torch.randn(self.x_btd.shape, generator=generator).to(self.x_btd.device) / 100
            other.x_btd = (self.x_btd * (1 + change)).float().double()
            right, rounded = other.run(exact), other.run(own)
            for name, tensor in right.items():
                error = float((rounded[name] - tensor).norm())
                squares[name] = squares.get(name, 0.0) + error**2
        return {name: math.sqrt(total / _DRAWS) for name, total in squares.items()}

    def precision_of(self, name: str, run: Run) -> str:
        """Return the precision whose tolerance applies to a result: that of the run."""
        return run.precision

    def _resets_on(self, device: str) -> Tensor | None:
        return None if self.resets_bt is None else self.resets_bt.to(device)

    def _layer_for(self, run: Run) -> nn.Module:
        layer = copy.deepcopy(self.layer).to(device=run.device, dtype=_DTYPES[run.precision])
        _set_backend(layer, run.backend)
        return layer

    def _first_state(self, layer: nn.Module, run: Run) -> State:
        """Return the state in the dtypes that the layer itself returns in this precision."""
        assert self.state is not None
        one_btd = self.x_btd[:, :1].to(run.device, _DTYPES[run.precision])
        with torch.no_grad(), autocast_for(run):
            _, like = layer(one_btd)
        return {
            name: _placed(part, run.device, like[name].dtype) for name, part in self.state.items()
        }

    def _gradients(
        self, outputs: dict[str, Tensor], inputs: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        differentiable = [
            (out, grad.to(out.device, out.dtype))
            for out, grad in zip(outputs.values(), self.incoming, strict=True)
            if out.requires_grad
        ]
        outs, incoming = zip(*differentiable, strict=True)
        found = gradients(outs, list(inputs.values()), incoming)
        return {f"d {name}": grad for name, grad in zip(inputs, found, strict=True)}


def tune_for(cell: Cell, shape: Shape, run: Run) -> None:
    """Compile a package's kernels for a layer of this shape, all at once, and then tune them."""
    compile_ahead_for(cell, shape, run)
    call_once(cell, shape, run)


def compile_ahead_for(cell: Cell, shape: Shape, run: Run) -> None:
    """Compile a package's kernels for a layer of this shape, all at once."""
    if importable("triton"):
        from elman.kernels.triton_ahead import compile_ahead

        compile_ahead(partial(call_once, cell, shape, run))


def call_once(cell: Cell, shape: Shape, run: Run) -> None:
    """Run both passes of a layer of this shape once, so that a package tunes its kernels for it."""
    dtype = _DTYPES[run.precision]
    build = layer_class(cell)
    layer = build(shape.dim, **shape.options, backend=run.backend, device=run.device, dtype=dtype)
    sizes = (shape.batch, shape.steps, shape.dim)
    x_btd = torch.randn(sizes, device=run.device, dtype=dtype, requires_grad=True)
    state: State | None = None
    with autocast_for(run):
        if shape.initial:
            with torch.no_grad():
                _, state = layer(x_btd)
        y_btd, _ = layer(x_btd, state)
    y_btd.backward(torch.randn_like(y_btd))


def compile_experiments(
    experiments: Sequence[Experiment], runs: Sequence[Run], meanwhile: Callable[[], None]
) -> None:
    """Compile the Triton kernels of our own that experiments launch, all at once.

    A first state, its gradient and a gradient of the last state each make other kernels, so the
    experiments themselves ask for them. ``meanwhile`` is called while these compile, if any do; it
    launches no Triton kernel.
    """

    def run_all() -> None:
        # The last sizes are the largest, whose kernels take the compiler longest.
        for experiment, run in itertools.product(reversed(experiments), runs):
            experiment.run(run)
        meanwhile()

    if experiments and runs:
        from elman.kernels.triton_ahead import compile_ahead

        compile_ahead(run_all)


def compile_for(cell: Cell, shape: Shape, run: Run) -> None:
    """Call a layer of this shape once, on a tiny input, so that its kernels are compiled.

    Kernels for a GPU compile each of the two passes by itself, and those for CUDA also depend on
    the batch.
    """
    dtype = _DTYPES[run.precision]
    build = layer_class(cell)
    layer = build(shape.dim, **shape.options, backend=run.backend, device=run.device, dtype=dtype)
    both = run.backend in ("cuda", "triton")
    batch = shape.batch if run.backend == "cuda" else 1
    x_btd = torch.zeros(batch, 1, shape.dim, device=run.device, dtype=dtype, requires_grad=True)
    resets_bt = x_btd.new_zeros(batch, 1, dtype=torch.bool) if shape.resets else None
    with torch.set_grad_enabled(both), autocast_for(run):
        y_btd, _ = layer(x_btd, None, resets_bt)
    if y_btd.requires_grad:
        # All backward passes of a GPU have one thread, where kernels would compile one by one.
        with torch.autograd.set_multithreading_enabled(False):
            gradients([y_btd], [x_btd], [torch.zeros_like(y_btd)])


def trained(layer: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that training changes, by name."""
    return {name: p for name, p in layer.named_parameters() if p.requires_grad}


@contextmanager
def poisoned() -> Iterator[None]:
    """Fill every uninitialized buffer with NaN, so that an unwritten element fails the check.

    torch does this when deterministic algorithms are on; it only warns about operations that
    cannot be deterministic. Its public function also imports the compiler, which takes seconds.
    """
    switch = torch._C._set_deterministic_algorithms
    before = torch.are_deterministic_algorithms_enabled()
    warned_only = torch.is_deterministic_algorithms_warn_only_enabled()
    switch(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic.*")
            yield
    finally:
        switch(before, warn_only=warned_only)


@contextmanager
def products(*, rounded: bool) -> Iterator[None]:
    """Compute fp32 products in full fp32, so that other rounding does not count as a kernel's.

    Args:
        rounded: Let them round their factors to TF32 instead, as the kernel being checked does.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if rounded else "highest")
    try:
        with torch.backends.cudnn.flags(enabled=torch.backends.cudnn.enabled, allow_tf32=rounded):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def _set_backend(layer: nn.Module, backend: str) -> None:
    for module in layer.modules():
        if isinstance(module, Mixer):
            module.backend = backend


def _layer(cell: Cell, shape: Shape) -> nn.Module:
    layer = layer_class(cell)(shape.dim, **shape.options, dtype=torch.float64).eval()
    for parameter in layer.parameters():
        parameter.add_(_shift(parameter))
    if isinstance(layer, Mixer):
        layer.bound_recurrence()
    for parameter in layer.parameters():
        parameter.copy_(_rounded(parameter))
    if isinstance(layer, Mixer):
        # Power iterations adapt to the shifted matrices, so that the spectral bound holds again.
        for _ in range(_CATCHING_UP):
            layer.begin_step()
    return layer


def _shift(parameter: Tensor) -> Tensor:
    """Return a random shift of half a parameter's own size, with a lower bound."""
    size = float(parameter.square().mean().sqrt())
    least = 0.3 / math.sqrt(parameter.shape[-1]) if parameter.ndim > 1 else 0.2
    return torch.randn_like(parameter) * max(size / 2, least)


def _input(shape: Shape) -> Tensor:
    if not shape.strided:
        return _rounded(torch.randn(shape.batch, shape.steps, shape.dim).double())
    wide_tbd = _rounded(torch.randn(shape.steps, shape.batch, 2 * shape.dim).double())
    return wide_tbd.transpose(0, 1)[..., ::2]


def _resets(shape: Shape, device: str) -> Tensor:
    """Return where documents start: about every eighth step, and at the first one of some rows."""
    resets_bt = torch.rand(shape.batch, shape.steps) < 1 / 8
    resets_bt[::2, 0] = True
    return resets_bt.to(device)


def _rounded(tensor: Tensor) -> Tensor:
    return tensor.to(torch.bfloat16).to(tensor.dtype)


def _placed(tensor: Tensor, device: str, dtype: torch.dtype) -> Tensor:
    """Return a leaf tensor with the strides of ``tensor`` if that is not contiguous."""
    if tensor.is_contiguous():
        return tensor.to(device, dtype, copy=True).requires_grad_()
    span = torch.empty_strided(tensor.shape, tensor.stride(), device=device, dtype=dtype)
    return span.copy_(tensor).requires_grad_()


def autocast_for(run: Run) -> torch.autocast:
    """Return the context for a run's precision."""
    return torch.autocast(run.device, torch.bfloat16, enabled=run.precision == "bf16")
