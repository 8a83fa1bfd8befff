"""``elman -m``: from one command to jobs, all checked before the first, and to one table.

Expansion, checks and the table stand here; how jobs are started is the launcher's.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict, read_write

from elman.compose import typed_overrides
from elman.config import MODES, RunConfig
from elman.errors import ExitStatus, RunStatus, UserError
from elman.launch import session
from elman.launch.prepare import checked_config
from elman.launch.quoting import quoted
from elman.launch.run_folder import claim_folder, make_folder, run_name
from elman.messages import in_our_words
from elman.report.sweep_table import SweepRow, print_sweep

SWEEP_FILE, RESULT_FILE = "sweep.json", "result.json"
NOT_STARTED = "not started"
_WORDS = {status.exit_status: status.value for status in RunStatus}
_WORDS[ExitStatus.USER_ERROR] = "refused"


@dataclass(frozen=True)
class SweepJob:
    """One job of a sweep.

    Args:
        number: Its place, from 1.
        overrides: What a person would type to run it alone.
        swept: Those of its overrides that other jobs have otherwise.
        config: Its typed configuration.
        folder: Its run folder, or None if its mode makes none.
    """

    number: int
    overrides: tuple[str, ...]
    swept: tuple[str, ...]
    config: RunConfig
    folder: Path | None = None

    @property
    def for_launcher(self) -> list[str]:
        """Its overrides and its folder, as launchers of Hydra's own expect it too."""
        if self.folder is None:
            return list(self.overrides)
        folder, name = quoted(str(self.folder.parent)), quoted(self.folder.name)
        return [*self.overrides, f"hydra.sweep.dir={folder}", f"hydra.sweep.subdir={name}"]


def sweep(
    context: HydraContext, task: TaskFunction, config: DictConfig, arguments: Sequence[str]
) -> None:
    """Run a whole sweep; its exit status is left in the session.

    Raises:
        UserError: a job is wrong; none has run then.
    """
    started = datetime.now().astimezone()
    _refuse_run_dir(config)
    jobs = _checked_jobs(context, config, arguments)
    jobs, folder = _with_folders(config, jobs)
    _write(folder, jobs, [NOT_STARTED] * len(jobs), arguments, started, None)
    launcher = Plugins.instance().instantiate_launcher(
        hydra_context=context, task_function=task, config=config
    )
    returns = launcher.launch([job.for_launcher for job in jobs], initial_job_idx=0)
    rows = [_row(job, returned) for job, returned in zip(jobs, returns, strict=True)]
    _write(folder, jobs, [row.status for row in rows], arguments, started, datetime.now())
    print_sweep(rows, [job.config for job in jobs], folder)
    state = session.current()
    if state.status is ExitStatus.OK and any(row.failed for row in rows):
        state.status = ExitStatus.FAILED


def expand(overrides: Sequence[Override]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Return (all overrides, the swept ones among them) of every job: the product of the sweeps.

    Of two overrides with one key the later counts, as without ``-m``.

    Raises:
        UserError: a sweep has no values, or endlessly many.
    """
    values: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        values[key] = [f"{key}={value}" for value in _values(override)]
    swept = [key for key, texts in values.items() if len(texts) > 1]
    keys = list(values)
    return [
        (job, tuple(text for key, text in zip(keys, job, strict=True) if key in swept))
        for job in itertools.product(*values.values())
    ]


def _values(override: Override) -> list[str]:
    if not override.is_sweep_override():
        # As typed: 1e-3 and not 0.001.
        return [(override.input_line or "").partition("=")[2]]
    if not override.is_discrete_sweep():
        raise UserError(
            f"{override.input_line}: has endlessly many values; "
            f"list some, as in {override.get_key_element()}=1,2,3, or use range(start,stop,step)"
        )
    found = list(override.sweep_string_iterator())
    if not found:
        raise UserError(f"{override.input_line}: matches nothing; `elman --help` lists the choices")
    return found


def _refuse_run_dir(config: DictConfig) -> None:
    if any(text.startswith("hydra.run.dir=") for text in typed_overrides(config, "hydra")):
        raise UserError("hydra.run.dir: every job would share it; with -m type hydra.sweep.dir=...")


def _checked_jobs(
    context: HydraContext, config: DictConfig, arguments: Sequence[str]
) -> list[SweepJob]:
    with in_our_words(arguments):
        parser = OverridesParser.create(config_loader=context.config_loader)
        expanded = expand(parser.parse_overrides(list(arguments)))
    jobs = []
    for number, (overrides, swept) in enumerate(expanded, 1):
        try:
            typed = _checked(context, config, overrides)
        except UserError as error:
            place, label = f"job {number} of {len(expanded)}", " ".join(swept or overrides)
            named = "" if str(error).startswith(label) else f" ({label})"
            raise UserError(f"{place}{named}: {error}") from error
        jobs.append(SweepJob(number, overrides, swept, typed))
    return jobs


def _checked(context: HydraContext, config: DictConfig, overrides: Sequence[str]) -> RunConfig:
    loader = context.config_loader

    def compose(chosen: Sequence[str]) -> DictConfig:
        return loader.load_sweep_config(config, list(chosen))

    with in_our_words(overrides, compose):
        typed = checked_config(compose(overrides))
    if typed.train.resume is not None:
        raise UserError("train.resume: cannot be swept; resume each run by a command of its own")
    return typed


def _with_folders(config: DictConfig, jobs: list[SweepJob]) -> tuple[list[SweepJob], Path | None]:
    """Make the sweep's folder, if a job needs one, and name each job's folder in it."""
    if not any(MODES[job.config.mode].makes_folder for job in jobs):
        return jobs, None
    place = Path(str(config.hydra.sweep.dir))
    if any(text.startswith("hydra.sweep.dir=") for text in typed_overrides(config, "hydra")):
        folder = claim_folder(place, "hydra.sweep.dir")
    else:
        folder = make_folder(place, "sweep")
    with read_write(config.hydra), open_dict(config.hydra), read_write(config.hydra.sweep):
        config.hydra.sweep.dir = str(folder)
    width = max(2, len(str(len(jobs))))
    return [_in_folder(job, folder, width) for job in jobs], folder


def _in_folder(job: SweepJob, folder: Path, width: int) -> SweepJob:
    if not MODES[job.config.mode].makes_folder:
        return job
    name = f"{job.number:0{width}d}_{run_name(job.config)}"
    return SweepJob(job.number, job.overrides, job.swept, job.config, folder / name)


def _row(job: SweepJob, returned: JobReturn) -> SweepRow:
    """Return a finished job's line of the table."""
    result: dict[str, Any] | None = None
    if job.folder is not None and (path := job.folder / RESULT_FILE).is_file():
        result = json.loads(path.read_text(encoding="utf-8"))
    status = _status(returned, result)
    return SweepRow(job.number, job.swept or job.overrides, status, result)


def _status(returned: JobReturn, result: dict[str, Any] | None) -> str:
    if returned.status is JobStatus.UNKNOWN:
        return NOT_STARTED
    code = returned._return_value
    if isinstance(code, int) and code < 0:
        return f"killed ({signal.Signals(-code).name})"
    if result is not None and "status" in result:
        return str(result["status"])
    if isinstance(code, int):
        return _WORDS.get(ExitStatus(code), "crash") if code in set(ExitStatus) else "crash"
    return RunStatus.CRASH.value


def _write(
    folder: Path | None,
    jobs: Sequence[SweepJob],
    statuses: Sequence[str],
    arguments: Sequence[str],
    started: datetime,
    ended: datetime | None,
) -> None:
    """Write ``sweep.json`` atomically: what was asked for, and each job's folder and end."""
    if folder is None:
        return
    content = {
        "command": shlex.join(["elman", "-m", *arguments]),
        "started": started.isoformat(timespec="seconds"),
        "ended": ended.astimezone().isoformat(timespec="seconds") if ended else None,
        "jobs": [
            {
                "number": job.number,
                "command": shlex.join(["elman", *job.overrides]),
                "folder": job.folder.name if job.folder else None,
                "status": status,
            }
            for job, status in zip(jobs, statuses, strict=True)
        ],
    }
    scratch = folder / f".{SWEEP_FILE}.unfinished"
    scratch.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(scratch, folder / SWEEP_FILE)
