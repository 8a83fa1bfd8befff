"""The parts of the page that say how far a sweep is and what failed."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from elman.base.exit_status import RunStatus
from elman.base.units import duration
from elman.report.comparison.content import Report
from elman.report.comparison.escape import escape
from elman.report.comparison.notes import Failures, failures_of
from elman.report.comparison.progress import ESTIMATE, WAITS, JobProgress, Progress, progress_of
from elman.report.comparison.rows import LOSS, NONE
from elman.report.comparison.runs import Run, Source
from elman.runs.state import RUNNING

_MOST_NAMED = 12
_SIGNS = {"ok": "\N{CHECK MARK}", "bad": "\N{MULTIPLICATION SIGN}", "runs": "", "waits": ""}


def is_living(report: Report) -> bool:
    """Whether a sweep of the report still runs, so that its page will change."""
    return any(source.living for source in report.sources)


def progress_text(report: Report) -> str:
    """Return how far the running sweeps are, as HTML; empty if none runs."""
    rows = {id(run): number for number, row in enumerate(report.rows) for run in row.runs}
    return "".join(_progress(source, rows) for source in report.sources if source.living)


def _progress(source: Source, rows: dict[int, int]) -> str:
    progress = progress_of(source)
    counts = {
        "ok": progress.count(RunStatus.OK),
        "bad": progress.failed,
        "runs": progress.count(RUNNING),
        "waits": progress.count(*WAITS),
    }
    words = dict(zip(counts, ("ok", "failed", "running", "waiting"), strict=True))
    told = ", ".join(f"<b>{count}</b> {words[kind]}" for kind, count in counts.items() if count)
    bar = "".join(
        f'<i class="{kind}" style="flex-grow:{count}"></i>' for kind, count in counts.items()
    )
    jobs = "".join(_box(job.run, rows) for job in progress.jobs)
    running = [job for job in progress.jobs if job.run.status == RUNNING]
    now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    return (
        f'<p class="state">{told} of {len(progress.jobs)} jobs; {_left(progress)}</p>'
        f'<div class="bar" aria-hidden="true">{bar}</div><ul class="jobs">{jobs}</ul>'
        f"{_running(running, rows)}"
        f'<p class="caption">As of {escape(now)}; this page is rewritten each minute while the '
        f"sweep runs, and reloads itself. {escape(ESTIMATE)}</p>"
    )


def _left(progress: Progress) -> str:
    """Say how long the sweep will take, and the time of its jobs together."""
    unit = "GPU hours" if progress.on_gpus else "hours of jobs"
    spent, left = progress.spent / 3600, progress.left / 3600
    if progress.unknown == progress.count(RUNNING, *WAITS) > 0:
        return f"time left unknown until a job has recorded steps; {_hours(spent)} {unit} so far"
    least = "at least " if progress.unknown else "about "
    return (
        f"{least}<b>{duration(progress.seconds)}</b> left; {_hours(spent)} {unit} so far, "
        f"{least}{_hours(left)} to come"
    )


def _hours(hours: float) -> str:
    return f"{hours:.1f}" if hours >= 1 else f"{hours:.2g}"


def _kind(run: Run) -> str:
    if run.status == RunStatus.OK:
        return "ok"
    return "runs" if run.status == RUNNING else "waits" if run.status in WAITS else "bad"


def _box(run: Run, rows: dict[int, int]) -> str:
    kind = _kind(run)
    tip = f"job {run.job}: {_what(run)}: {run.status}"
    return (
        f'<li class="{kind}" data-row="{rows.get(id(run), -1)}" title="{escape(tip)}">'
        f"{escape(run.job)}{_SIGNS[kind]}</li>"
    )


def _what(run: Run) -> str:
    return " ".join(run.swept) or run.model


def _running(jobs: Sequence[JobProgress], rows: dict[int, int]) -> str:
    """Return a table of the jobs that run now."""
    if not jobs:
        return ""
    lines = []
    for job in jobs:
        metrics, share = job.run.metrics, job.share or 0.0
        steps = f"{metrics.steps[-1]:,.0f}" if metrics and metrics.steps.size else NONE
        losses = metrics.losses[-100:] if metrics and metrics.losses.size else None
        cells = (
            escape(job.run.job),
            escape(_what(job.run)),
            f'<progress value="{share:.3f}" max="1">{share:.0%}</progress> {share:.0%}',
            steps,
            NONE if losses is None else LOSS.shown(float(losses.mean())),
            duration(job.spent),
            NONE if job.left is None else duration(job.left),
        )
        css = ("n", "t", "t w", "n", "n", "n", "n")
        texts = "".join(f'<td class="{c}">{v}</td>' for c, v in zip(css, cells, strict=True))
        lines.append(f'<tr data-row="{rows.get(id(job.run), -1)}">{texts}</tr>')
    names = ("job", "runs now", "done", "step", "loss, last 100", "time", "left")
    heads = "".join(f'<th scope="col">{name}</th>' for name in names)
    body = f"<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f'<div class="scroll"><table class="running">{body}</table></div>'


def failures_text(report: Report) -> str:
    """Return what failed, why, and what to type, as HTML; empty if nothing failed."""
    found = (failures_of(source) for source in report.sources)
    return "".join(_failures(each) for each in found if each is not None)


def _failures(failures: Failures) -> str:
    lines = []
    for failure in failures.found:
        names = [f"job {run.job}" if run.job is not None else run.name for run in failure.runs]
        more = len(names) - _MOST_NAMED
        named = ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        lines.append(
            f"<li><b>{len(names)} {'run' if len(names) == 1 else 'runs'}</b>: "
            f'{escape(failure.words)} <span class="meta">({escape(named)})</span></li>'
        )
    again = ""
    if failures.command:
        again = f"<p>{escape(failures.when)}: <code>{escape(failures.command)}</code></p>"
    return f'<ul class="notes failures">{"".join(lines)}</ul>{again}'
