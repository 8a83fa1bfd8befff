"""The seeds' standard 100M table beside ours: their printed counts, and the models' real ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from elman.base.tables import TerminalTable, names, numbers
from elman.config.compose import compose_config
from elman.models.counts import count_params
from elman.models.sizing import Sized, solve

TARGET = 100_000_000
CITATION = 'seed 004, "Standard 100M Configurations"'


@dataclass(frozen=True)
class StandardModel:
    """One row of the seeds' table.

    Args:
        label: Its name there.
        model: Our name of the model.
        dim: Width.
        depth: Layers.
        extra: The rest of the row.
        millions: Its parameters as printed, in millions.
    """

    label: str
    model: str
    dim: int
    depth: int
    extra: str
    millions: int


# Copied from the seed.
STANDARD = (
    StandardModel("mamba2", "mamba2", 896, 20, "expand=2", 101),
    StandardModel("fla-gdn", "fla-gdn", 768, 20, "expansion=2.0", 95),
    StandardModel("E75h4n16", "e75h4n16", 2048, 20, "H=4, n=16, exp=1.0", 98),
    StandardModel("E75h4n24", "e75h4n24", 2048, 20, "H=4, n=24, exp=1.0", 104),
    StandardModel("E75h4n32", "e75h4n32", 1920, 20, "H=4, n=32, exp=1.0", 99),
    StandardModel("E75h8n16", "e75h8n16", 1920, 20, "H=8, n=16, exp=1.0", 99),
    StandardModel("E75h8n24", "e75h8n24", 1792, 20, "H=8, n=24, exp=1.0", 99),
)
HEADS = (
    "model",
    "extra",
    "dim x depth",
    "seed",
    "counted",
    "off seed",
    "nearest dim",
    "its count",
    "off 100M",
)


@dataclass(frozen=True)
class StandardRow:
    """A row of the seeds' table and our own counts.

    Args:
        seed: The row.
        params: Our count at the seed's size, from the model built on the meta device.
        solved: Our size nearest to ``TARGET`` at the seed's depth.
    """

    seed: StandardModel
    params: int
    solved: Sized

    @property
    def difference(self) -> float:
        """Our count against the printed one, as a signed fraction of it."""
        return self.params / (self.seed.millions * 1e6) - 1

    def cells(self) -> list[str]:
        """Return the row as text, under ``HEADS``."""
        return [
            self.seed.label,
            self.seed.extra,
            f"{self.seed.dim} x {self.seed.depth}",
            f"{self.seed.millions}M",
            f"{self.params:,}",
            f"{self.difference:+.2%}",
            str(self.solved.size),
            f"{self.solved.count:,}",
            f"{self.solved.error:+.2%}",
        ]


def standard_rows() -> list[StandardRow]:
    """Count and solve every model of the table."""
    rows = []
    for seed in STANDARD:
        sizes = [f"model.dim={seed.dim}", f"model.depth={seed.depth}"]
        model = compose_config([f"model={seed.model}", *sizes]).model
        solved = solve(model, count_params, TARGET).nearest
        rows.append(StandardRow(seed, count_params(model), solved))
    return rows


def standard_table(rows: Sequence[StandardRow]) -> TerminalTable:
    """Return the table for a terminal."""
    title = f"{CITATION}, and the 128-aligned dim nearest to {TARGET:,}"
    headings = [*names(*HEADS[:2]), *numbers(*HEADS[2:])]
    spare = ("extra", "off 100M", "its count", "nearest dim", "seed", "dim x depth")
    table = TerminalTable(headings, spare, title)
    for row in rows:
        table.add(*row.cells())
    return table
