"""Notes when a command imports, compiles, checks and computes, and draws it.

It runs the command in this process and writes spans of time: what was done, in which thread, and
begin and end in seconds from the start of the process. The functions of :data:`WATCHED` are watched
from outside, at microseconds a call.

    python benchmarks/timeline.py spans.json model=e88f_h32n16 train.steps=1
    python benchmarks/timeline.py --table spans.json
    python benchmarks/timeline.py --draw picture.svg before=spans.json now=other.json
"""

from __future__ import annotations

import functools
import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from typing import Any

WATCHED = {
    "elman.base.phases": {"Phases.end": "end of phase"},
    "elman.data.batches": {"open_data": "data", "open_batches": "batches"},
    "elman.devices.environment": {"choose_device": "device", "describe_environment": "environment"},
    "elman.kernels.driver": {"load": "load kernel"},
    "elman.kernels.nvrtc": {"_compile": "compile"},
    "elman.kernels.packages": {"import_kernels": "import package"},
    "elman.kernels.triton_ahead": {"compile_ahead": "compile triton"},
    "elman.models.build": {"build_model": "model"},
    "elman.parity.experiment": {
        "Experiment.__init__": "experiment",
        "Experiment.run": "run experiment",
        "compile_for": "compile for check",
        "tune_for": "tune",
    },
    "elman.parity.gate": {"require_parity": "check cell", "require_norm_parity": "check norms"},
    "elman.parity.norms": {"NormExperiment.run": "run norm", "compile_norm": "compile norm"},
    "elman.parity.proof": {"prove_runs": "prove", "prove_as_trained": "prove as trained"},
    "elman.report.plots": {"plot_losses": "plot"},
    "elman.runs.prepare": {"prepare": "compose and validate"},
    "elman.training.checkpoints.integrity": {"fingerprints": "checksums"},
    "elman.training.checkpoints.store": {
        "CheckpointStore._write": "write checkpoint",
        "Checkpoint.load_weights": "load weights",
    },
    "elman.training.cuda_graph": {
        "ReplayedPass.prepare": "record pass",
        "ReplayedPass.record_update": "record update",
    },
    "elman.training.flops": {"flops_per_byte": "count operations"},
    "elman.training.held_out": {"HeldOut.score": "score", "HeldOut.forecast": "forecast"},
    "elman.training.optim.optimizers": {"TrainingOptimizer.__init__": "optimizer"},
    "elman.training.preparation": {"prepare_step": "first pass"},
    "elman.training.recorder": {"Recorder.__init__": "recorder"},
    "elman.training.reload_check": {"reload_difference": "compare saved"},
    "elman.training.trainer": {"Trainer.run": "train", "Trainer.first_pass": "forecast and pass"},
}
"""By module, functions and what they do, in words."""
IMPORTED = ("torch", "triton", "fla", "mamba_ssm", "matplotlib", "hydra", "omegaconf", "pydantic")
Span = dict[str, Any]
spans: list[Span] = []


def began() -> float:
    """Return when this process was started, by ``time.monotonic``."""
    from elman.base.phases import _age

    return time.monotonic() - _age()


def watched(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that notes when it is called."""

    @functools.wraps(call)
    def watching(*given: Any, **named: Any) -> Any:
        begin = time.monotonic()
        try:
            return call(*given, **named)
        finally:
            what = name
            if name == "end of phase":
                what = f"{name} {given[1]}"
            elif name == "compile":
                what = f"compile: {given[0].label}"
            elif "run " in name:
                what = f"{name} {given[1].backend} {given[1].precision}"
            note(what, begin)

    return watching


def note(name: str, begin: float) -> None:
    """Note a span that ends now."""
    thread = threading.current_thread().name
    spans.append({"name": name, "thread": thread, "begin": begin, "end": time.monotonic()})


class Watcher(MetaPathFinder, Loader):
    """Watches functions of modules when they are imported, and how long packages take."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Return the usual spec with this loader around it."""
        if name not in WATCHED and name not in IMPORTED:
            return None
        sys.meta_path.remove(self)
        try:
            spec = __import__("importlib.util").util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                begin = time.monotonic()
                execute(module)
                if name in IMPORTED:
                    note(f"import {name}", begin)
                for place, what in WATCHED.get(name, {}).items():
                    *owners, last = place.split(".")
                    owner = functools.reduce(getattr, owners, module)
                    if hasattr(owner, last):
                        setattr(owner, last, watched(what, getattr(owner, last)))

            vars(spec.loader)["exec_module"] = exec_module
        return spec


def table(rows: Sequence[Span], least: float = 0.04) -> None:
    """Print the spans that took long, in the order in which they began."""
    for span in sorted(rows, key=lambda one: one["begin"]):
        took = span["end"] - span["begin"]
        if took >= least or span["name"].startswith("end of phase"):
            print(f"{span['begin']:8.2f} {took:7.2f} s  {span['thread'][:24]:<24} {span['name']}")


def phases_of(rows: Sequence[Span]) -> list[tuple[str, float, float]]:
    """Return name, begin and end of every phase until the first step."""
    found, last = [], 0.0
    for span in sorted(rows, key=lambda one: one["end"]):
        if span["name"].startswith("end of phase "):
            found.append((span["name"].removeprefix("end of phase "), last, span["end"]))
            last = span["end"]
            if found[-1][0] == "first_step":
                break
    return found


def draw(runs: dict[str, Any], picture: str, least: float = 0.1) -> None:
    """Draw runs below each other: phases, what the main thread does, and what compiles beside."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "elman", "font.size": 8}
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(len(runs), 1, sharex=True, squeeze=False, layout="constrained")
    figure.set_size_inches(9.5, 1.9 * len(runs) + 0.5)
    for panel, (name, run) in zip(panels[:, 0], runs.items(), strict=True):
        phases = phases_of(run["spans"])
        end = phases[-1][2]
        _bars(panel, 0, [(f"{what} {b - a:.1f}", a, b) for what, a, b in phases], 0)
        spans = [one for one in run["spans"] if one["end"] - one["begin"] >= least]
        spans = [one for one in spans if one["begin"] < end]
        main = [(one["name"], one["begin"], one["end"]) for one in spans if "Main" in one["thread"]]
        _bars(panel, 1, _innermost(main), 2)
        beside = [one for one in spans if "Main" not in one["thread"]]
        beside = [one for one in beside if one["name"].startswith("compile: ")]
        lanes: list[float] = []
        for one in sorted(beside, key=lambda one: one["begin"]):
            free = [n for n, until in enumerate(lanes) if until <= one["begin"]]
            lane = free[0] if free else len(lanes)
            lanes[lane : lane + 1] = [one["end"]]
            label = one["name"].removeprefix("compile: ")
            _bars(panel, 2 + lane / 2, [(label, one["begin"], one["end"])], 3, height=0.4)
        panel.set_title(f"{name}: {end:.1f} s to the end of the first pass", loc="left")
        panel.set_yticks([0, 1, 2], ["phases", "main thread", "compiling"])
        panel.set_ylim(2 + max(2, len(lanes)) / 2, -0.6)
        panel.spines[["top", "right", "left"]].set_visible(False)
    panels[-1, 0].set_xlabel("seconds since the command was typed")
    figure.savefig(picture, metadata={"Date": None})


def _innermost(spans: Sequence[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Return the spans that contain no other one."""
    return [
        one
        for one in spans
        if not any(a >= one[1] and b <= one[2] and (n, a, b) != one for n, a, b in spans)
    ]


def _bars(
    panel: Any,
    row: float,
    spans: Sequence[tuple[str, float, float]],
    color: int,
    height: float = 0.8,
) -> None:
    """Draw spans as bars of a row; names that do not fit are left out."""
    for number, (name, begin, end) in enumerate(spans):
        shade = 0.55 if number % 2 else 0.35
        where = (begin, row - height / 2)
        panel.add_patch(
            _rectangle(where, end - begin, height, facecolor=f"C{color}", alpha=shade, linewidth=0)
        )
        if end - begin > 0.12 * len(name):
            panel.text((begin + end) / 2, row, name, ha="center", va="center", fontsize=6)
    panel.autoscale_view(scaley=False)


def _rectangle(*where: Any, **how: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle(*where, **how)


def main(argv: Sequence[str]) -> int:
    """Run a command and write its spans, or print or draw those of files."""
    if argv[0] == "--table":
        table(json.loads(Path(argv[1]).read_text())["spans"])
        return 0
    if argv[0] == "--draw":
        named = dict(one.split("=", 1) for one in argv[2:])
        draw({name: json.loads(Path(file).read_text()) for name, file in named.items()}, argv[1])
        return 0
    sys.meta_path.insert(0, Watcher())
    start = began()
    from elman.base import phases
    from elman.cli import main as cli

    # Not main's own way out: that ends the process before anything can be written.
    sys.argv = ["elman", *argv[1:]]
    phases.count_from_start_of_process()
    status = cli.main(argv[1:])
    end = time.monotonic()
    rows = [{**span, "begin": span["begin"] - start, "end": span["end"] - start} for span in spans]
    Path(argv[0]).write_text(
        json.dumps({"command": argv[1:], "seconds": end - start, "spans": rows})
    )
    print(f"{' '.join(argv[1:])}: {end - start:.2f} s")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
