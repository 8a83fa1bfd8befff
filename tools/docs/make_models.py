"""Writes docs/models.md: every shipped model, and the seeds' standard 100M table.

Run it after a change to a model's YAML or to a cell's size: ``python tools/docs/make_models.py``. A
test compares the committed page with this script's output.
"""

from __future__ import annotations

from pathlib import Path

from elman.config.catalog import Listed, catalog
from elman.report.markdown import code, table
from elman.report.tables.models import HEADS, row_cells
from elman.report.tables.standard import CITATION, TARGET, standard_rows
from elman.report.tables.standard import HEADS as STANDARD_HEADS

PAGE = Path(__file__).with_name("models.md")
INTRODUCTION = """\
# Models

Every model of this version: value of `model=`, one YAML file each in `conf/model`. Written by
`tools/docs/make_models.py`; a test compares. `elman mode=models` prints the same list with your own
files, `elman mode=models model=e68` explains one and says what was published for it.

Names: a bare name is the size of the comparisons at twenty layers where there was one, mostly of
100M. Another size is `<name>_<dim>x<depth>`, with `_e<expansion>` where it is not the cell's own;
`_legacy` is the LayerNorm wrapper of before 2026-01-11. Parameters are the published counts, or by
hand from the formulas where none was published; building the model must give them. The files say
which row each count stands in; [counts_not_rebuilt.md](counts_not_rebuilt.md) lists the counts that
no model has.
"""
STANDARD = f"""\
## The standard 100M table

{CITATION}, beside ours: `counted` is the model at the seed's size, built on the meta device, and
`off seed` its distance from the seed's printed count; then the 128-aligned dim whose count at that
depth is nearest to {TARGET:,}. `elman mode=solve solve.standard=true` prints it.
"""


def row(listed: Listed) -> list[str]:
    """Return one model's line."""
    assert listed.config is not None, listed.problem
    name, cell, *sizes, source = row_cells(listed, listed.config.expected_params)
    return [code(name), f"[{cell}](cells.md#{cell})", *sizes, source]


def page() -> str:
    """Return the whole page."""
    models = table(HEADS, [row(listed) for listed in catalog()])
    standard = table(STANDARD_HEADS, [found.cells() for found in standard_rows()])
    return "\n".join([INTRODUCTION, models, "", STANDARD, standard, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
