"""Checks every usable backend of a cell against the fp64 reference, over the list of shapes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.kernels import flash_qla
from elman.kernels.compiler import no_compilers
from elman.kernels.driver import only_asking
from elman.kernels.nvrtc import Unit
from elman.kernels.packages import package_problem
from elman.kernels.threads import cpu_share
from elman.kernels.triton_tuning import choices_kept
from elman.kernels.triton_version import interpreted
from elman.models.backends import (
    AUTO,
    REFERENCE,
    TORCH,
    choose_backend,
    computation_path,
    resolve_backend,
)
from elman.models.cells import registry
from elman.models.cells.declaration import Cell, Value
from elman.models.mixed import cell_of, requested_backends
from elman.parity import norms
from elman.parity.checks import Check, Proof
from elman.parity.compare import TOLERANCES, Comparison, compare, compare_beside, least_norm
from elman.parity.experiment import (
    EXACT,
    Experiment,
    Run,
    compile_ahead_for,
    compile_experiments,
    compile_for,
    tune_for,
)
from elman.parity.shapes import TrainedSizes, few_rows, shape_as_trained, shapes_for
from elman.sections.model import ModelConfig

# Precisions of each backend; the GPU engines have no fp64.
_PRECISIONS = {
    "cpu": ("fp64", "fp32", "bf16"),
    "cuda": ("fp32", "bf16"),
    "triton": ("fp32", "bf16"),
}
_OF_PACKAGES = ("tf32", "bf16")  # their fp32 products are TF32
_GPU = ("cuda", "triton", flash_qla.NAME)
S = TypeVar("S")


def prove(
    config: ModelConfig,
    *,
    backend: str = AUTO,
    seed: int = 42,
    quick: bool = False,
    allow_slow: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Proof:
    """Check a model's layer on every backend of its cell that runs here.

    Args:
        config: Group ``model``; the check uses its cell's options.
        backend: As ``kernels.backend``: ``auto`` means all backends, a name means only that one.
        seed: Seed of weights and inputs.
        quick: Two small shapes instead of all.
        allow_slow: As ``baseline.allow_slow``: a packaged baseline is also checked on a GPU as
            plain PyTorch, if a run would be computed that way.
        progress: Called with the number of finished checks (first 0) and the number of all.

    Raises:
        UserError: the named backend does not run here.
    """
    asked = zip(config.parts(), requested_backends(config, backend), strict=True)
    layers = [
        _Layer(part, *runs_here(cell_of(part), name, allow_slow=allow_slow)) for part, name in asked
    ]
    if config.wrapper != "rms":
        return _prove_layers(config, layers, seed=seed, quick=quick, progress=progress)
    norm_runs, norm_notes = norms.norm_runs(backend)
    later = len(norm_runs) * len(norms.norm_shapes(config.dim, norm_runs, quick=quick))
    with compiling_norms(config, norm_runs, quick=quick):
        proof = _prove_layers(
            config,
            layers,
            seed=seed,
            quick=quick,
            progress=lambda done, total: progress(done, total + later),
        )
    before = len(proof.checks)
    of_norms = prove_norms(
        config.dim,
        norm_runs,
        seed=seed,
        quick=quick,
        progress=lambda done, total: progress(before + done, before + total),
    )
    proof.checks += of_norms.checks
    proof.notes += norm_notes
    return proof


class _Layer(NamedTuple):
    """A kind of layer of a model, how it can run here, and what cannot run."""

    part: ModelConfig
    runs: list[Run]
    notes: list[str]


def _prove_layers(
    config: ModelConfig,
    layers: Sequence[_Layer],
    *,
    seed: int,
    quick: bool,
    progress: Callable[[int, int], None],
) -> Proof:
    """Check every kind of layer of a model, as one proof."""
    proof = Proof(config.name, config.cells)
    numbers = [
        len(layer.runs)
        * len(shapes_for(registry.cell(part.cell), part.dim, part.options, quick=quick)[0])
        for layer in layers
        for part in [layer.part]
    ]
    for layer in layers:

        def further(done: int, total: int, before: int = len(proof.checks)) -> None:
            progress(before + done, sum(numbers))

        one = prove_runs(*layer, seed=seed, quick=quick, progress=further)
        proof.kernels = [*dict.fromkeys([*proof.kernels, *one.kernels])]
        proof.checks += one.checks
        proof.notes += [note for note in one.notes if note not in proof.notes]
        proof.paths |= one.paths
    return proof


def prove_runs(
    config: ModelConfig,
    runs: Sequence[Run],
    notes: Sequence[str] = (),
    *,
    seed: int,
    quick: bool,
    resets: bool = False,
    rows: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Proof:
    """Check a model's layer in the given ways of running it.

    Args:
        resets: Check only the kernels that zero the state where documents start, which are others.
        rows: Rows of a training step, whose kernels are compiled beside those of the check.
        meanwhile: Called while kernels for CUDA compile, and with any other kernels not at all:
            beside it compilers run, but no kernels and nothing that draws numbers.
    """
    cell = _computed_by(registry.cell(config.cell), runs)
    shapes, left_out = shapes_for(cell, config.dim, config.options, quick=quick)
    shapes = [replace(shape, resets=resets or shape.resets) for shape in shapes]
    kernels = dict.fromkeys(run.backend for run in runs if run.backend != cell.backends[0])
    proof = Proof(config.name, cell.name, list(kernels), notes=[*notes, *left_out])
    for run in runs:
        if (path := computation_path(cell, run.backend)) is not None:
            proof.paths[cell.name, run.backend] = path
    total = len(shapes) * len(runs)
    progress(0, total)
    experiments = [Experiment(cell, shape, seed) for shape in shapes]
    own_triton = [run for run in runs if run.backend == "triton" and cell.package is None]
    # tilelang compiles each kernel when it is first launched.
    apart = [*own_triton, *(run for run in runs if run.backend == flash_qla.NAME)]
    others = [run for run in runs if run.backend in kernels and run not in apart]
    cases = [
        _Case(experiment, Label(cell.name, shape.name, shape.describe(cell)), cell.backends[0])
        for shape, experiment in zip(shapes, experiments, strict=True)
    ]
    wanted = [*itertools.product(shapes, others)]
    if rows is not None and others:
        wanted.append((replace(shapes[-1], batch=rows), others[-1]))

    def compute_references() -> None:
        for case in cases if cell.package is None else []:  # a package is tuned by time
            case.compute_references(runs)

    # The last ones are the largest, and take longest: they begin first.
    with _compiling(partial(compile_for, cell), wanted[::-1]):
        # What Triton's interpreter runs is not compiled.
        on_gpu = [run for run in own_triton if run.device != "cpu"]
        compile_experiments(experiments, on_gpu, compute_references)
        compute_references()  # those that are left
        if list(kernels) == ["cuda"]:
            meanwhile()
    for case in cases:
        for check in case.checks(runs, shared=cell.package is None):
            proof.checks.append(check)
            progress(len(proof.checks), total)
    return proof


def _computed_by(cell: Cell, runs: Sequence[Run]) -> Cell:
    """Return a cell that refuses the sizes that a backend on request does not compute."""
    asked = {run.backend for run in runs}.intersection(cell.on_request)

    def rule(dim: int, options: Mapping[str, Value]) -> None:
        cell.rule(dim, options)
        for name in asked:
            cell.check_request(name, dim, options)

    return replace(cell, rule=rule) if asked else cell


def prove_as_trained(config: ModelConfig, run: Run, sizes: TrainedSizes, *, seed: int) -> Proof:
    """Check the layer of a packaged baseline at the sizes of its training.

    A package tunes its kernels for every new size. Here it tunes for the run's own rows and steps,
    and the check, which has fewer, uses the variants that it chose.

    Args:
        config: Group ``model``.
        run: How training will run it, on a GPU. The fp64 reference runs there, too.
        sizes: Sizes of a training step.
        seed: Seed of weights and inputs.
    """
    cell = registry.cell(config.cell)
    trained = shape_as_trained(cell, config.dim, config.options, sizes)
    tune_for(cell, trained, run)
    shape = few_rows(trained)
    experiment = Experiment(cell, shape, seed, run.device)
    label = Label(cell.name, shape.name, shape.describe(cell))
    proof = Proof(config.name, cell.name, [run.backend])
    base = cell.backends[0]
    with choices_kept():
        compile_ahead_for(cell, shape, run)
        proof.checks += _Case(experiment, label, base, run.device).checks([run], shared=False)
    return proof


def prove_norms(
    width: int,
    runs: Sequence[Run],
    *,
    seed: int,
    quick: bool,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Proof:
    """Check the residual stream's add and norm at a model's width, in the given ways.

    Args:
        width: Model width.
        runs: As :func:`elman.parity.norms.norm_runs` returns them.
        seed: Seed of the numbers.
        quick: Only a model's own norms; no odd sizes.
        progress: As in :func:`prove`; not called before the first check is done.
    """
    shapes = norms.norm_shapes(width, runs, quick=quick)
    kernels = _of_kernels(runs)
    proof = Proof(norms.NAME, norms.NAME, list(dict.fromkeys(run.backend for run in kernels)))
    with _compiling(norms.compile_norm, [*itertools.product(shapes, kernels)]):
        pass
    for shape in shapes:
        label = Label(norms.NAME, shape.name, shape.describe())
        case = _Case(norms.NormExperiment(shape, seed), label, REFERENCE)
        for check in case.checks(runs, shared=True):
            proof.checks.append(check)
            progress(len(proof.checks), len(shapes) * len(runs))
    return proof


def compiling_norms(
    config: ModelConfig, runs: Sequence[Run], *, quick: bool
) -> AbstractContextManager[object]:
    """Compile the kernels that :func:`prove_norms` will call, while the cell's are checked.

    Not beside a packaged baseline, which is tuned by time.
    """
    if any(registry.cell(part.cell).package is not None for part in config.parts()):
        return nullcontext()
    shapes = norms.norm_shapes(config.dim, runs, quick=quick)
    return _compiling(norms.compile_norm, [*itertools.product(shapes, _of_kernels(runs))])


def _of_kernels(runs: Sequence[Run]) -> list[Run]:
    return [run for run in runs if run.backend != REFERENCE]


@contextmanager
def _compiling(
    compile_one: Callable[[S, Run], None], wanted: Sequence[tuple[S, Run]]
) -> Iterator[None]:
    """Compile what the checks will call, several kernels at a time, beside what is done inside.

    The end of this context waits for all of them. Errors are ignored here: the check itself meets
    and reports them. Where ``compile_one`` draws from torch's generator of the CPU, as a new layer
    does, nothing else inside this context may.

    A call for CUDA asks for all its kernels at once, both passes' among them, and computes nothing.
    """
    with torch.random.fork_rng(devices=[]), ThreadPoolExecutor(cpu_share()) as pool:
        compiled: list[Future[Any]] = []

        def ask(unit: Unit) -> None:
            compiled.append(pool.submit(unit.cubin))

        try:
            for shape, run in wanted:
                if run.backend == "cuda":
                    with suppress(Exception), only_asking(ask):
                        compile_one(shape, run)
                else:
                    compiled.append(pool.submit(compile_one, shape, run))
            yield
            wait(compiled)
        except BaseException:
            with no_compilers():
                # Python 3.11 takes a thread for ended whose join was interrupted: none is joined.
                wait([one for one in compiled if not one.cancel()])
            raise


def runs_here(
    cell: Cell, requested: str = AUTO, *, allow_slow: bool = False
) -> tuple[list[Run], list[str]]:
    """Return every way of running a cell on this machine, and notes on what cannot run.

    Args:
        cell: The cell.
        requested: As ``kernels.backend``.
        allow_slow: As :func:`prove`.

    Raises:
        UserError: the requested backend cannot run here.
    """
    base = cell.backends[0]
    runs, notes = [Run(base, "cpu", "fp32")], []
    if torch.cuda.is_available() and (base == TORCH or _slow_on_gpu(cell, requested, allow_slow)):
        runs.append(Run(base, "cuda", "fp32"))
    if len(cell.backends) == 1:
        why = f" ({cell.reason})" if cell.reason else ""
        notes.append(f"no kernel yet{why}: {base} in fp32 against fp64")
    for name in cell.backends[1:] if requested == AUTO else (requested,):
        if name == base:
            continue
        try:
            device = _device_of(cell, name, named=requested != AUTO)
        except UserError as error:
            if requested != AUTO:
                raise
            notes.append(f"not checked: {error}")
            continue
        runs += [Run(name, device, precision) for precision in _precisions(cell, name)]
    return runs, notes


def _slow_on_gpu(cell: Cell, requested: str, allow_slow: bool) -> bool:
    """Whether a packaged baseline would run as plain PyTorch on the GPU."""
    if not allow_slow or cell.package is None or requested not in (AUTO, REFERENCE):
        return False
    return resolve_backend(cell, requested, "cuda", allow_slow=True) == REFERENCE


def _device_of(cell: Cell, backend: str, *, named: bool) -> str:
    """Return the device type that a backend of the cell runs on here; raise if none.

    Triton's interpreter takes minutes, so that it has to be asked for by name.
    """
    slowly = backend == "triton" and named and cell.package is None and interpreted()
    if backend not in _GPU or (slowly and not torch.cuda.is_available()):
        choose_backend(cell, backend, "cpu")
        return "cpu"
    if not torch.cuda.is_available():
        raise UserError(f"kernels.backend={backend}: torch sees no GPU here")
    choose_backend(cell, backend, "cuda")
    packages = [] if cell.package is None else [cell.package]
    for package in [*packages, *([flash_qla.PACKAGE] if backend == flash_qla.NAME else [])]:
        if problem := package_problem(package, "cuda"):
            raise UserError(f"kernels.backend={backend}: {problem}")
    return "cuda"


def _precisions(cell: Cell, backend: str) -> Sequence[str]:
    if backend == flash_qla.NAME:
        return ("bf16",)
    return _OF_PACKAGES if cell.package is not None else _PRECISIONS[backend]


@dataclass(frozen=True)
class Label:
    """Names of the checked part and shape, and the shape's sizes, for people."""

    part: str
    shape: str
    sizes: str


class Measured(Protocol):
    """A part of a model with all its inputs."""

    def run(self, run: Run) -> dict[str, Tensor]:
        """Return outputs and gradients by name, in fp64 on the CPU."""

    def rounding(self, exact: Run, own: Run) -> dict[str, float]:
        """Return the absolute error that ``own`` makes by rounding, of each result."""

    def precision_of(self, name: str, run: Run) -> str:
        """Return the precision whose tolerance applies to a result."""


class _Case:
    """An experiment with its results, each of which is computed once.

    Args:
        experiment: The part to run.
        label: Its names and sizes.
        base: The backend whose fp64 result is correct by definition.
        exact_on: Device type on which ``base`` computes in fp64.
    """

    def __init__(
        self, experiment: Measured, label: Label, base: str, exact_on: str = "cpu"
    ) -> None:
        self._experiment, self._label, self._base = experiment, label, base
        self._exact = Run(base, exact_on, EXACT)
        self._known: dict[Run, dict[str, Tensor]] = {}
        self._rounding: dict[Run, dict[str, float]] = {}

    def compute_references(self, runs: Sequence[Run]) -> None:
        """Compute what the results of ``runs`` are compared with."""
        self._found_by(self._exact)
        for run in runs:
            if run.precision != EXACT:
                self._found_by(self._reference(run))

    def checks(self, runs: Sequence[Run], *, shared: bool) -> Iterator[Check]:
        """Yield the check of each way of running the experiment.

        Args:
            runs: The ways.
            shared: As for :func:`~elman.parity.compare.compare_beside`.
        """
        for run in runs:
            comparisons = self._comparisons(run, shared)
            yield Check(run, self._label.shape, self._label.sizes, comparisons, self._label.part)

    def _comparisons(self, run: Run, shared: bool) -> list[Comparison]:
        names = self._found_by(self._exact)
        first = [self._compared(name, run, shared) for name in names]
        # Few sums nearly cancel, and how far they may be off takes passes of their own.
        if run.precision == EXACT or all(
            one.passed or math.isnan(one.relative_l2) for one in first
        ):
            return first
        own = self._reference(run)
        if own not in self._rounding:
            self._rounding[own] = self._experiment.rounding(self._exact, own)
        rounding = self._rounding[own]
        return [
            one if one.passed else self._compared(name, run, shared, rounding.get(name, 0.0))
            for name, one in zip(names, first, strict=True)
        ]

    def _compared(self, name: str, run: Run, shared: bool, rounding: float = 0.0) -> Comparison:
        """Return the comparison of one tensor; ``rounding`` as of :func:`least_norm`."""
        wanted, found = self._found_by(self._exact), self._found_by(run)
        precision = self._experiment.precision_of(name, run)
        if run.precision == EXACT:
            return compare(name, found[name], wanted[name], TOLERANCES[EXACT])
        return compare_beside(
            name,
            found[name],
            self._found_by(self._reference(run))[name],
            wanted[name],
            precision,
            shared=shared,
            terms=float(wanted["d x"].norm()) if "d x" in wanted else 0.0,
            least=least_norm(precision, wanted[name].numel(), rounding),
        )

    def _reference(self, run: Run) -> Run:
        return Run(self._base, run.device, run.precision)

    def _found_by(self, run: Run) -> dict[str, Tensor]:
        if run not in self._known:
            self._known[run] = self._experiment.run(run)
        return self._known[run]
