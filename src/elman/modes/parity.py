"""``mode=parity``: every kernel of a model's cell against the fp64 reference, on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from elman.config import RunConfig
from elman.errors import ExitStatus
from elman.launch.run_folder import RunLock, config_hash, write_config
from elman.parity.proof import prove
from elman.parity.record import write_parity
from elman.parity.source import proof_conditions
from elman.report.parity_table import print_parity
from elman.report.sweep_table import wide_console


def run(config: RunConfig, folder: Path | None) -> ExitStatus:
    """Check the layer of ``config.model`` and write ``parity.json``; any failure fails the job.

    Raises:
        UserError: the named backend does not run here.
    """
    assert config.parity is not None
    assert folder is not None
    settings = config.parity
    with RunLock(folder):
        write_config(folder, config)
        with _progress(config.model.name) as progress:
            proof = prove(
                config.model,
                backend=config.kernels.backend,
                seed=settings.seed,
                quick=settings.quick,
                allow_slow=config.baseline.allow_slow,
                progress=progress,
            )
        result = proof.as_json() | {
            "config_hash": config_hash(config),
            "seed": settings.seed,
            "quick": settings.quick,
            "conditions": proof_conditions(),
        }
        write_parity(folder, result)
    print_parity(wide_console(), result, folder)
    return ExitStatus.OK if proof.passed else ExitStatus.FAILED


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal; yield the function that takes checks done and checks in all."""
    columns = (TextColumn("checking {task.description}"), BarColumn(), MofNCompleteColumn())
    console = Console(file=sys.stderr)
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
