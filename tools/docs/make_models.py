"""Writes docs/models.md, every shipped model, and the sizes of their states beside the package.

Run it after a change to a model's YAML or to a cell's size: ``python tools/docs/make_models.py``. A
test compares the committed page with this script's output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from elman.config.catalog import Listed, catalog
from elman.config.model_files import model_files
from elman.models.state_bytes import state_size
from elman.models.state_sizes import FILE, counted_ahead, key_of
from elman.report.markdown import code, table
from elman.report.tables.models import HEADS, row_cells
from elman.report.tables.standard import CITATION, TARGET, standard_rows
from elman.report.tables.standard import HEADS as STANDARD_HEADS

ROOT = Path(__file__).parents[2]
PAGE, STATES = ROOT / "docs" / "models.md", ROOT / "src" / "elman" / "models" / FILE
INTRODUCTION = """\
# Models

This page lists every model of this version. A model's name is a value of `model=`, and each is one
YAML file: architectures and the names that people type in `conf/model`, sizes of published
comparisons in a folder there for each. A name is that of the file, without its folder.
`tools/docs/make_models.py` writes the page, and a test compares it with the files.

`elman mode=models` prints the first list together with your own files. `models.sizes=true` adds the
published sizes, and `models.filter=e88_ablation` prints those of one folder and whatever else has
that text. `elman mode=models model=e68` explains one model and says what was published for it.

**Names.** A bare name has the size of the published comparisons at twenty layers, mostly of 100M,
if there was one. Another size is called `<name>_<dim>x<depth>`, with `_e<expansion>` if the
expansion is not the cell's own. `_legacy` marks the LayerNorm wrapper, which was used before
2026-01-11.

**Parameters** are the published counts. If none was published, they are computed by hand from the
formulas. Building the model must give this number. Each YAML file says which published row its
count is from; [counts_not_rebuilt.md](counts_not_rebuilt.md) lists the published counts that no
model has.

**State bytes** are what one layer carries from byte to byte, for one row, with the last inputs of
its convolution. **Per byte** is what that grows by with every byte of context: only attention has
such a state. Projections are in bf16, states proper in fp32.
"""
STANDARD = f"""\
## The standard 100M table

{CITATION}, beside our counts. A seed is a document of the original project. `counted` is the count
of our model at the seed's size, built on the meta device. `off seed` is its distance from the count
that the seed prints. The last columns give the 128-aligned dim whose count at that depth is nearest
to {TARGET:,}. `elman mode=solve solve.standard=true` prints this table.
"""


def row(listed: Listed) -> list[str]:
    """Return one model's line."""
    assert listed.config is not None, listed.problem
    state = counted_ahead(listed.config)
    name, cell, *sizes, source = row_cells(listed, listed.config.expected_params, state)
    links = [f"[{one}](cells.md#{one})" for one in cell.split("+")]
    return [code(name), " + ".join(links), *sizes, source]


def page() -> str:
    """Return the whole page."""
    standard = table(STANDARD_HEADS, [found.cells() for found in standard_rows()])
    return "\n".join([INTRODUCTION, *_lists(), STANDARD, standard, ""])


def _lists() -> Iterator[str]:
    """Yield a list of the architectures, and one for each folder of published sizes."""
    models = catalog()
    yield from (table(HEADS, [row(one) for one in models if not one.folder]), "")
    readme = (model_files()["e1"].parent / "README.md").read_text(encoding="utf-8")
    for folder, sizes, cited in re.findall(
        r"^\| `(\w+)` \| (.+) \| (.+) \|$", readme, re.MULTILINE
    ):
        yield f"## {folder}\n\n{sizes} (specification: {cited}).\n"
        yield from (table(HEADS, [row(one) for one in models if one.folder == folder]), "")


def states() -> str:
    """Return the file of the states' sizes; it builds a layer of every model."""
    configs = {key_of(one.config): one.config for one in catalog() if one.config is not None}
    found = {key: state_size(config) for key, config in configs.items()}
    lines = [f'"{key}": {json.dumps(found[key])}' for key in sorted(found) if found[key]]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    STATES.write_text(states(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")
