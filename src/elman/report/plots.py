"""Pictures of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from elman.base import run_files
from elman.base.whole_file import whole_file
from elman.evaluation.metrics import bits_per_byte
from elman.report.metrics_file import read_metrics


def plot_losses(folder: Path) -> Path | None:
    """Draw ``loss.png`` in the run folder; None if no step was recorded."""
    metrics = read_metrics(folder)
    if not metrics.steps.size:
        return None
    figure = Figure(figsize=(7.0, 4.0))
    FigureCanvasAgg(figure)
    # Margins by matplotlib's layout engines would draw everything a second time.
    figure.subplots_adjust(left=0.1, right=0.98, bottom=0.12, top=0.93)
    axes = figure.add_subplot()
    steps, values = metrics.steps, bits_per_byte(1.0) * metrics.losses
    axes.plot(steps, values, color="0.75", linewidth=0.8, label="training, each step")
    axes.plot(steps, _smooth(values.tolist()), color="C0", label="training, smoothed")
    if metrics.validation_steps.size:
        marked, heights = metrics.validation_steps, metrics.validation_bpb
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
    with whole_file(folder / run_files.LOSS_CURVE) as scratch:
        figure.savefig(scratch, dpi=120, format="png")
    return folder / run_files.LOSS_CURVE


def _smooth(values: Sequence[float]) -> list[float]:
    """Return the mean over up to 5 % of the curve around each point."""
    reach = max(1, len(values) // 40)
    smoothed = []
    for index in range(len(values)):
        window = values[max(0, index - reach) : index + reach + 1]
        smoothed.append(sum(window) / len(window))
    return smoothed
