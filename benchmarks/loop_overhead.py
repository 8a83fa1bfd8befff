"""Measures the share of a training step that is not data, forward, backward or optimizer.

It runs the real trainer on the default data and model, and times its parts from outside in the same
steps. The remaining share is the loop's own. The promise is less than 2 %.

    python benchmarks/loop_overhead.py [steps] [override ...]
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from elman.base.exit_status import RunStatus
from elman.config.compose import compose_config
from elman.data.batches import Batches
from elman.models.language_model import LanguageModel
from elman.modes.train import run
from elman.runs.prepared import PreparedRun
from elman.training.moments import Listeners, Moment
from elman.training.optim.optimizers import TrainingOptimizer

ROUNDS = 7
PARTS = ("data", "forward", "backward", "optimiser")


def timed(book: dict[str, float], part: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``call`` with its time added to ``book[part]``."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            book[part] += time.perf_counter() - began

    return wrapper


def measure(overrides: list[str]) -> dict[str, float]:
    """Train one run and return seconds by part; ``total`` is the training clock."""
    book: dict[str, float] = defaultdict(float)
    patches: list[tuple[Any, str, str]] = [
        (Batches, "next", "data"),
        (LanguageModel, "loss", "forward"),
        (torch.Tensor, "backward", "backward"),
        (TrainingOptimizer, "step", "optimiser"),
        (TrainingOptimizer, "zero_grad", "optimiser"),
        (torch.nn.utils, "clip_grad_norm_", "optimiser"),
    ]
    begins, ends = Listeners.training_begins, Listeners.training_ends
    final: dict[str, float] = {}
    began = [0.0]

    def training_begins(listeners: Listeners, moment: Moment) -> None:
        begins(listeners, moment)
        book.clear()  # the discarded first pass does not count
        began[0] = time.perf_counter()

    def training_ends(listeners: Listeners, status: RunStatus, *, stopped: bool) -> None:
        final.update(book)  # what validation does afterwards is not the loop's
        final["total"] = time.perf_counter() - began[0]
        ends(listeners, status, stopped=stopped)

    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    for owner, name, part in patches:
        setattr(owner, name, timed(book, part, getattr(owner, name)))
    Listeners.training_begins = training_begins  # type: ignore[method-assign, assignment]
    Listeners.training_ends = training_ends  # type: ignore[method-assign, assignment]
    try:
        with tempfile.TemporaryDirectory() as folder:
            run(PreparedRun(compose_config(overrides), Path(folder)))
    finally:
        Listeners.training_begins = begins  # type: ignore[method-assign]
        Listeners.training_ends = ends  # type: ignore[method-assign]
        for owner, name, original in originals:
            setattr(owner, name, original)
    return final


def main() -> None:
    """Print the median share of every part over several runs, with the spread."""
    steps = sys.argv[1] if len(sys.argv) > 1 else "40"
    fixed = [f"train.steps={steps}", "train.val_every=null", "data.val_sample=2048"]
    fixed.append("train.graph=false")  # a replay has no parts
    rounds = [measure([*fixed, *sys.argv[2:]]) for _ in range(ROUNDS)]
    console = Console()
    for part in (*PARTS, "loop"):
        shares = []
        for book in rounds:
            own = book["total"] - sum(book[name] for name in PARTS)
            shares.append((own if part == "loop" else book[part]) / book["total"])
        spread = f"{min(shares):.2%} to {max(shares):.2%}"
        console.print(f"{part:<10} {statistics.median(shares):7.2%}   ({spread})")
    seconds = statistics.median(book["total"] for book in rounds) / int(steps)
    console.print(f"step {seconds * 1e3:.1f} ms, median of {ROUNDS} runs of {steps} steps")


if __name__ == "__main__":
    main()
