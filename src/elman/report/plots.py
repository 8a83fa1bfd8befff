"""Pictures of a run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from elman.training.metrics import bits_per_byte

CURVE = "loss.png"


@dataclass
class Curves:
    """Bits per byte by optimizer step, read back from ``metrics.jsonl``.

    A resumed run repeats the steps after its last checkpoint; the later record counts.
    """

    train: dict[int, float] = field(default_factory=dict)
    validation: dict[int, float] = field(default_factory=dict)


def read_curves(folder: Path) -> Curves:
    """Return the curves of the run in ``folder``; a half-written last line is left out."""
    curves = Curves()
    path = folder / "metrics.jsonl"
    if not path.is_file():
        return curves
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if record["kind"] == "step" and record["loss"] is not None:
            curves.train[record["step"]] = bits_per_byte(record["loss"])
        elif record["kind"] == "validation":
            curves.validation[record["step"]] = record["val_bpb"]
    return curves


def plot_losses(folder: Path) -> Path | None:
    """Draw ``loss.png`` in the run folder; None if no step was recorded."""
    curves = read_curves(folder)
    if not curves.train:
        return None
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    steps = sorted(curves.train)
    values = [curves.train[step] for step in steps]
    axes.plot(steps, values, color="0.75", linewidth=0.8, label="training, each step")
    axes.plot(steps, _smooth(values), color="C0", label="training, smoothed")
    if curves.validation:
        marked = sorted(curves.validation)
        heights = [curves.validation[step] for step in marked]
        axes.plot(marked, heights, "o-", color="C3", label="held out")
        axes.annotate(
            f"{heights[-1]:.3f}",
            (marked[-1], heights[-1]),
            xytext=(0, 8),
            textcoords="offset points",
            ha="right",
        )
    axes.set(xlabel="optimizer step", ylabel="bits per byte", title=folder.name)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(folder / CURVE, dpi=120)
    return folder / CURVE


def _smooth(values: Sequence[float]) -> list[float]:
    """Return the mean over up to 5 % of the curve around each point."""
    reach = max(1, len(values) // 40)
    smoothed = []
    for index in range(len(values)):
        window = values[max(0, index - reach) : index + reach + 1]
        smoothed.append(sum(window) / len(window))
    return smoothed
