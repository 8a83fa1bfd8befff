"""What computed the runs, what else ran, which number decides, and where controls are from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import combinations
from typing import Any

from elman.kernels import flash_qla
from elman.models.cells import registry
from elman.models.mixed import JOIN, joined
from elman.report.comparison.audit.compare import listed, same_text
from elman.report.comparison.audit.finding import Finding, Subject, equal, named, unequal, unknown
from elman.report.comparison.conditions import NOT_RECORDED, conditions, model_parts
from elman.report.comparison.deciding import LOSS, VAL_BPB
from elman.report.comparison.runs import Run

_CPU_BACKENDS, _GPU_BACKENDS = ("cpu",), ("cuda", "triton")
_PLAIN = ("reference", "torch")
HELD_OUT = frozenset({"val_bpb", "accuracy"})
"""The scores of trials that are measured on what no run trains on."""
_OVERLAP = 0.05


def backend(subject: Subject) -> Finding | None:
    """Look whether the fastest backend that its cell has for the device computed each row."""
    slower, silent, plain, fast = [], [], [], []
    for row in (row for group in subject.groups for row in group.rows):
        for run in row.counted:
            fastest, ran = _fastest(run), run.result.backend if run.result else None
            if fastest is None or ran is None:
                silent.append(row.label)
            elif _not_asked_for(ran) != fastest:
                slower.append(f"{row.label}: {ran}, and its cell has {fastest}")
            elif run.result is not None and run.result.slow_path:
                plain.append(row.label)
            else:
                fast.append(f"{ran}: {row.label}")
    if not subject.groups:
        return None
    if slower:
        return unequal("; ".join(dict.fromkeys(slower)))
    if plain and fast:
        names = named([*dict.fromkeys(plain)])
        return unequal(f"plain PyTorch ran {names}, which has no kernel there; the others have one")
    if silent:
        return unknown(f"{NOT_RECORDED}, or a cell that is not known here: {named([*set(silent)])}")
    return equal("each row by the fastest backend that its cell has for this device")


def _fastest(run: Run) -> str | None:
    """Return the fastest backend of a run's cell for its device; the last one is the fastest."""
    result = run.result
    device = result.environment.device if result else None
    if result is None or device is None:
        return None
    parts = model_parts(run.section("model"))
    found = [_fastest_of_part(part, device, result.environment.packages) for part in parts]
    known = [one for one in found if one is not None]
    return joined(known) if len(known) == len(found) else None


def _not_asked_for(ran: str) -> str:
    """Return what would have run without FlashQLA, which only the user's word chooses."""
    return joined(["triton" if one == flash_qla.NAME else one for one in ran.split(JOIN)])


def _fastest_of_part(
    model: Mapping[str, Any], device: str, packages: Mapping[str, str | None]
) -> str | None:
    cell = registry.cells().get(str(model.get("cell")))
    if cell is None:
        return None
    options = {key: model[key] for key in cell.options if key in model}
    if options.keys() != cell.options.keys():
        return None
    on_gpu = device.startswith("cuda")
    usable = {*_PLAIN, *(_GPU_BACKENDS if on_gpu else _CPU_BACKENDS)}
    if "rocm" in (packages.get("torch") or ""):
        usable.discard("cuda")
    return [name for name in cell.under(options).backends if name in usable][-1]


def code(subject: Subject) -> Finding | None:
    """Compare the version of elman, and of torch."""

    def of(run: Run) -> str | None:
        environment = run.result.environment if run.result else None
        own = environment and (environment.revision or environment.elman)
        torch = environment and environment.packages.get("torch")
        return f"elman {own}, torch {torch}" if own and torch else None

    return same_text(subject, of)


def contention(subject: Subject) -> Finding | None:
    """Look for other work on the GPU or CPU: as each run saw it, and by the times of all runs."""
    if not subject.groups:
        return None
    runs = subject.runs
    disturbed = [run.name for run in runs if run.result and run.result.contended]
    shared = [run.name for run in runs if run.result and (run.result.jobs_per_gpu or 1) > 1]
    reasons = [f"other work disturbed {named(disturbed)}"] if disturbed else []
    reasons += [f"several jobs on one GPU: {named(shared)}"] if shared else []
    reasons += _two_sweeps(subject)
    if reasons:
        return unequal("; ".join(reasons))
    silent = [run.name for run in runs if run.result is None or run.result.contended is None]
    if silent:
        return unknown(f"no measurement in {named(silent)}, as in runs of a few seconds")
    return equal("no other work was seen")


def _two_sweeps(subject: Subject) -> Iterator[str]:
    """Yield a line if runs of two folders used one GPU at the same time."""
    for one, other in combinations(subject.sources, 2):
        for first in one.runs:
            for second in other.runs:
                if _at_once(first, second):
                    yield f"two sweeps on one GPU at a time: {first.name} and {second.name}"
                    return


def _at_once(one: Run, other: Run) -> bool:
    gpus, times = [_gpu(run) for run in (one, other)], [_time(run) for run in (one, other)]
    if gpus[0] is None or gpus[0] != gpus[1] or times[0] is None or times[1] is None:
        return False
    shorter = min(end - begin for begin, end in (times[0], times[1]))
    both = min(times[0][1], times[1][1]) - max(times[0][0], times[1][0])
    return both > _OVERLAP * shorter and both > 0


def _gpu(run: Run) -> str | None:
    gpu = run.result.environment.gpu if run.result else None
    uuid = (gpu or {}).get("uuid")
    return None if uuid is None else str(uuid)


def _time(run: Run) -> tuple[float, float] | None:
    if run.result is None:
        return None
    try:
        begin, end = map(datetime.fromisoformat, (run.result.started or "", run.result.ended or ""))
    except ValueError:
        return None
    return begin.timestamp(), end.timestamp()


def score(subject: Subject) -> Finding | None:
    """Look whether held-out bytes decide, and whether they were measured in one way.

    Rows of a task are drawn anew for every step: a loss on them is one on rows never seen before.
    """
    if not subject.groups or subject.by is None:
        return None
    searched = {one.score for one in subject.tuned} - HELD_OUT
    if searched:
        return unequal(f"trials were judged by {', '.join(sorted(searched))}, not on held-out data")
    if subject.by.number is LOSS and not all(group.task for group in subject.groups):
        return unequal(f"the loss on trained bytes decides, not {VAL_BPB.name}: {subject.by.why}")

    def of(run: Run) -> str | None:
        facts = conditions(run)
        known = run.result is not None and run.result.val_bpb is not None
        parts = [facts["validation"], facts["metric version"]]
        return None if NOT_RECORDED in parts or not known else f"{VAL_BPB.name}: {parts[0]}"

    return same_text(subject, of, ("data.val_sample", "data.val_window"))


def provenance(subject: Subject) -> Finding | None:
    """Look where every row is from: its configuration, its machine, its code; or its source."""
    if not subject.groups:
        return None
    lacking: dict[str, list[str]] = {}
    for row in subject.rows:
        for run in row.counted:
            for what in _lacks(run):
                lacking.setdefault(what, []).append(run.name)
    if lacking:
        controls = listed(
            {f"no {what}": [*dict.fromkeys(names)] for what, names in lacking.items()}
        )
        return unequal(f"controls without provenance: {controls}")
    suites = {record.of.suite: record.protocol.rate for record in subject.records}
    if not suites:
        return equal("every row was run here, with its configuration, machine and code")
    unsaid = [name for name, rate in suites.items() if not rate]
    rates = f", and the rate of {named(unsaid)}" if unsaid else ""
    return unknown(f"hardware of the published figures of {named([*suites])}{rates}")


def _lacks(run: Run) -> Iterator[str]:
    environment = run.result.environment if run.result else None
    if run.config is None:
        yield "configuration"
    if environment is None or environment.device_name is None:
        yield "machine"
    if environment is None or not (environment.revision or environment.elman):
        yield "version of the code"
