"""``mode=parity``: every kernel of a model's cell against the fp64 reference, on this machine."""

from __future__ import annotations

import sys

from rich.console import Console

from elman.base import run_files
from elman.base.consoles import table_console
from elman.base.disk import say_unwritten
from elman.base.exit_status import ExitStatus
from elman.base.live_line import ProgressBar
from elman.config.run_config import RunConfig
from elman.models.backends import computation_path, tuning_note
from elman.models.mixed import cell_of, requested_backends
from elman.parity.proof import prove, runs_here
from elman.parity.record import write_parity
from elman.parity.source import proof_conditions
from elman.report.tables.parity import print_parity
from elman.runs.folder import RunLock, config_hash, write_config
from elman.runs.prepared import PreparedRun


def run(job: PreparedRun) -> ExitStatus:
    """Check the layer of ``config.model`` and write ``parity.json``; any failure fails the job.

    Raises:
        UserError: the named backend does not run here.
    """
    config, folder = job.config, job.folder
    assert config.parity is not None
    assert folder is not None
    settings = config.parity
    with RunLock(folder):
        write_config(folder, config)
        with ProgressBar(_stage(config), Console(file=sys.stderr)) as bar:
            proof = prove(
                config.model,
                backend=config.kernels.backend,
                seed=settings.seed,
                quick=settings.quick,
                allow_slow=config.baseline.allow_slow,
                progress=bar.show,
            )
        result = proof.as_json() | {
            "config_hash": config_hash(config),
            "seed": settings.seed,
            "quick": settings.quick,
            "conditions": proof_conditions(),
        }
        failure: OSError | None = None
        try:
            write_parity(folder, result)
        except OSError as error:
            failure = error
    print_parity(table_console(), result, folder)
    if failure is not None:
        say_unwritten(folder / run_files.PARITY, failure)
        return ExitStatus.FAILED
    return ExitStatus.OK if proof.passed else ExitStatus.FAILED


def _stage(config: RunConfig) -> str:
    """Return what is being done, and why it takes long if it does."""
    allow_slow, model = config.baseline.allow_slow, config.model
    notes = (
        tuning_note(computation_path(cell, run.backend), run.backend)
        for cell, name in zip(
            map(cell_of, model.parts()),
            requested_backends(model, config.kernels.backend),
            strict=True,
        )
        for run in runs_here(cell, name, allow_slow=allow_slow)[0]
    )
    note = next((f" ({note})" for note in notes if note), "")
    return f"checking {config.model.name}{note}"
