"""Finds, before the first job, which models would run as plain PyTorch (slow path), and why.

One rule holds for all: such a model runs, one line is printed for each reason, and its result and
rows are marked. On a GPU a suite that claims speed is refused, and so is a packaged baseline
without its package; ``baseline.allow_slow=true`` lets both run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from elman.base.errors import UserError
from elman.config.run_config import RunConfig
from elman.launchers.job import SweepJob, wants_gpu
from elman.launchers.places import has_gpus
from elman.models.backends import refused_slow_path, slow_reason
from elman.models.mixed import cell_of, requested_backends, slow_path
from elman.sections.launching import LauncherConfig
from elman.sweeps.suite_runs import ChosenSuite


@dataclass(frozen=True)
class _Slow:
    """A job whose model would run as plain PyTorch."""

    config: RunConfig
    reason: str
    on_gpu: bool

    @property
    def model(self) -> str:
        return self.config.model.name

    @property
    def cell(self) -> str:
        return self.config.model.cells


def slow_paths(
    suite: ChosenSuite | None, jobs: Sequence[SweepJob], launcher: LauncherConfig
) -> list[str]:
    """Return a line for each reason why models of a training sweep run on their slow path.

    Args:
        suite: The suite, if the sweep runs one.
        jobs: Its jobs.
        launcher: The launcher that would run them.

    Raises:
        UserError: the suite claims speed, or a baseline lacks its package on a GPU, and
            ``baseline.allow_slow`` is not set.
    """
    configs = [job.config for job in jobs if job.config.mode == "train"]
    has_gpu = any(map(wants_gpu, configs)) and has_gpus(launcher)
    slow = [found for config in configs if (found := _slow(config, has_gpu)) is not None]
    claims = suite is not None and suite.config.claims_speed
    refused = [
        one
        for one in slow
        if one.on_gpu and ((claims and not one.config.baseline.allow_slow) or _is_refused(one))
    ]
    if refused:
        raise UserError(_refusal(suite, configs, refused, claims))
    return [f"slow path: {line}; marked in the tables" for line in _lines(slow)]


def _refusal(
    suite: ChosenSuite | None,
    configs: Sequence[RunConfig],
    refused: Sequence[_Slow],
    claims: bool,
) -> str:
    """Return the error of a sweep that does not start: every reason, and what lets it start."""
    names = {one.model for one in refused}
    rest = list(dict.fromkeys(c.model.name for c in configs if c.model.name not in names))
    if suite is None:
        subject, only = "baseline.allow_slow=false", ""
    else:
        subject = f"benchmark={suite.name}" + (" claims speed" if claims else "")
        only = f", or benchmark.only={','.join(rest)}" if rest else ""
    listed = "; ".join(_lines(refused, "would run"))
    return f"{subject}: on a GPU {listed}; add baseline.allow_slow=true, which marks the rows{only}"


def _lines(slow: Iterable[_Slow], verb: str | None = None) -> list[str]:
    """Return one text for each reason, with the models and cells that have it."""
    groups: dict[str, list[_Slow]] = {}
    for one in slow:
        groups.setdefault(one.reason, []).append(one)
    lines = []
    for reason, group in groups.items():
        models = ", ".join(dict.fromkeys(one.model for one in group))
        cells = list(dict.fromkeys(one.cell for one in group))
        named = f"cell{'s' if len(cells) > 1 else ''} {', '.join(cells)}"
        does = verb or ("run" if ", " in models else "runs")
        lines.append(f"{models} {does} as plain PyTorch ({named}: {reason})")
    return lines


def _slow(config: RunConfig, has_gpu: bool) -> _Slow | None:
    """Return why a model would run on its slow path, or None if it would not."""
    on_gpu = has_gpu and wants_gpu(config)
    reason = slow_path(config.model, config.kernels.backend, "cuda" if on_gpu else "cpu")
    return None if reason is None else _Slow(config, reason, on_gpu)


def _is_refused(one: _Slow) -> bool:
    config = one.config
    model, allow_slow = config.model, config.baseline.allow_slow
    pairs = zip(model.parts(), requested_backends(model, config.kernels.backend), strict=True)
    return any(
        slow_reason(cell_of(part), name, "cuda") is not None
        and refused_slow_path(cell_of(part), name, allow_slow=allow_slow)
        for part, name in pairs
    )
