"""The dense engine's kernels against fp64 and to the bit; times of every form that they have.

check   outputs and all gradients of every step, with NaN in every tensor that the engine allocates,
        and again with resets; repeats, another stream and a replayed CUDA graph to the bit
time    the recurrence in bf16, replayed as a CUDA graph, all sizes and forms in turn in every
        round; "products" is a graph of the step's products alone; cuDNN's GRU runs eagerly
model   a training step of a model in every form

    python tools/gpu/run.py dense [check] [time] [model] [--only groups] [steps=tanh,lstm]
        [sizes=512,768]

All three take 60 to 90 s. ``--only`` chooses forms; ``sizes`` are the channels that are timed. On a
CPU, ``check`` checks the backend cpu.
"""

from __future__ import annotations

from elman.ops.dense.cuda import forms
from elman.ops.dense.recurrences import CELLS
from tools.gpu.dense_calls import guarded
from tools.gpu.dense_checks import checks
from tools.gpu.dense_times import SIZES, model, more_times, times
from tools.gpu.job import Check, Job


def check(job: Job) -> None:
    """Compare every step and form with fp64, and to the bit with itself."""
    checks(job, job.chosen(forms.REASONS), steps_of(job))


def time(job: Job) -> None:
    """Time every step, size and form."""
    steps, widths = steps_of(job), [int(text) for text in job.settings["sizes"].split(",") if text]
    sizes = [
        (step, width)
        for step, all_widths in SIZES.items()
        for width in all_widths
        if step in steps and width in (widths or all_widths)
    ]
    times(job, job.chosen(forms.REASONS), sizes)
    more_times(job, job.chosen(forms.REASONS), steps)


def train(job: Job) -> None:
    """Time a training step in every form."""
    for form in job.chosen(forms.REASONS):
        guarded(job, {"model": "e1_1280x6", "form": form}, form, model)


def steps_of(job: Job) -> list[str]:
    """Return the steps that were requested."""
    requested = [name for name in job.settings["steps"].split(",") if name]
    return [step for step in CELLS if not requested or step in requested]


CHECK = Check(
    {"check": check, "time": time, "model": train},
    names=lambda: forms.REASONS,
    settings={"steps": "", "sizes": ""},
    on_cpu=("check",),
)
