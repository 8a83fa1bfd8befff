"""The typed configuration of one job, and what is known of each mode before its module is imported.

:func:`elman.config.validate.validate` makes a :class:`RunConfig` from the tree that Hydra composes.
Its sections are in :mod:`elman.sections`. Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from elman.base import run_files
from elman.models.cells import registry
from elman.sections.data import AnyData
from elman.sections.measuring import BenchConfig, ParityConfig
from elman.sections.model import ModelConfig
from elman.sections.modes import EvalConfig, ExportConfig, GenerateConfig, ModelsConfig
from elman.sections.optim import OptimConfig
from elman.sections.parallel import ParallelConfig
from elman.sections.probe import ProbeConfig
from elman.sections.reporting import ReportConfig, VerdictConfig
from elman.sections.section import Section
from elman.sections.solve import SolveConfig
from elman.sections.training import BaselineConfig, KernelsConfig, LogConfig, TrainConfig


class RunConfig(Section):
    """The configuration of one job. Sections after ``log`` exist only in the mode they name."""

    mode: Literal[
        "train",
        "eval",
        "generate",
        "solve",
        "models",
        "suites",
        "doctor",
        "parity",
        "bench",
        "report",
        "tasks",
        "verdict",
        "probe",
        "export",
    ]
    model: ModelConfig
    data: AnyData
    optim: OptimConfig
    train: TrainConfig
    kernels: KernelsConfig
    baseline: BaselineConfig = BaselineConfig()
    parallel: ParallelConfig = ParallelConfig()
    log: LogConfig
    eval: EvalConfig | None = None
    generate: GenerateConfig | None = None
    solve: SolveConfig | None = None
    models: ModelsConfig | None = None
    parity: ParityConfig | None = None
    bench: BenchConfig | None = None
    report: ReportConfig | None = None
    verdict: VerdictConfig | None = None
    probe: ProbeConfig | None = None
    export: ExportConfig | None = None


OF_SWEEPS = ("launcher", "sweep", "tune")
"""Groups that only a sweep as a whole reads, never a single job."""


@dataclass(frozen=True)
class Mode:
    """What the rest of the program knows about a mode before its module is imported.

    Args:
        reads: Sections that it reads; a key of another section is an error on the command line.
        makes_folder: Whether a job of this mode gets a run folder.
        result_file: File in the run folder with the result of a job that has ended.
        table: ``module:function`` that prints the table at the end of a sweep; it gets the sweep's
            rows, configurations and folder.
        compares: Whether the table compares models, which is unfair if their sizes differ.
        in_process: Whether a sweep runs its jobs in its own process, one after another: for a mode
            that makes no folder and ends in seconds.
    """

    reads: frozenset[str]
    makes_folder: bool = False
    result_file: str = run_files.RESULT
    table: str = "elman.report.tables.sweep:print_sweep"
    compares: bool = False
    in_process: bool = False


MODES: dict[str, Mode] = {
    "train": Mode(
        frozenset(
            {
                "model",
                "data",
                "optim",
                "train",
                "kernels",
                "baseline",
                "parallel",
                "log",
                "benchmark",
                "tune",
            }
        ),
        makes_folder=True,
        table="elman.report.comparison.terminal:print_training_sweep",
        compares=True,
    ),
    "eval": Mode(frozenset({"eval", "kernels", "baseline"})),
    "generate": Mode(frozenset({"generate", "kernels", "baseline"})),
    "solve": Mode(
        frozenset({"solve", "model", "data", "train", "kernels"}),
        table="elman.report.tables.solve:print_solutions",
        in_process=True,
    ),
    "models": Mode(frozenset({"models", "model", "data"}), in_process=True),
    "suites": Mode(frozenset({"benchmark"}), in_process=True),
    "doctor": Mode(frozenset()),
    "tasks": Mode(frozenset({"data"}), in_process=True),
    "report": Mode(frozenset({"report"}), in_process=True),
    "verdict": Mode(frozenset({"verdict"}), in_process=True),
    "export": Mode(frozenset({"export"})),
    "parity": Mode(
        frozenset({"parity", "model", "kernels", "baseline", "benchmark"}),
        makes_folder=True,
        result_file=run_files.PARITY,
        table="elman.report.tables.parity:print_parity_sweep",
    ),
    "bench": Mode(
        frozenset({"bench", "model", "data", "optim", "baseline", "benchmark"}),
        makes_folder=True,
        compares=True,
        result_file=run_files.BENCH,
        table="elman.report.tables.bench:print_bench_sweep",
    ),
    "probe": Mode(
        frozenset({"probe", "kernels", "baseline"}),
        makes_folder=True,
        result_file=run_files.PROBE,
        table="elman.report.probe.write:print_probe_sweep",
    ),
}


def flatten(config: RunConfig) -> dict[str, Any]:
    """Return a tree that :func:`validate` accepts, with the cell's options as keys of ``model``."""
    tree = config.model_dump(exclude_none=False)
    tree["model"] |= tree["model"].pop("options")
    return {key: value for key, value in tree.items() if value is not None}


def size_keys(cell_name: str) -> frozenset[str]:
    """Return the dotted keys that change the parameter count of a model with this cell."""
    options = registry.cell(cell_name).options
    sizes = {name for name, option in options.items() if option.size}
    return frozenset(
        f"model.{key}" for key in sizes | {"cell", "dim", "depth", "wrapper", "mlp_ratio", "layers"}
    )
