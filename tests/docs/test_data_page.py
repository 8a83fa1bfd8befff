"""docs/data.md names the cells that cannot zero their state between documents."""

from __future__ import annotations

import re
from pathlib import Path

from elman.models.cells import registry

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")


def test_the_page_names_every_cell_that_cannot_reset_and_no_other() -> None:
    listed = re.search(r"These cannot do it, and the command says so: ([^.]*)\.", PAGE)
    assert listed is not None
    cannot = {
        name
        for name, cell in registry.cells().items()
        if cell.no_resets({key: option.default for key, option in cell.options.items()})
    }
    assert set(re.findall(r"`(\w+)`", listed[1])) == cannot - {"e23"}
    assert "e23" in cannot
    zeros = {key: option.default for key, option in registry.cell("e23").options.items()}
    assert not registry.cell("e23").no_resets(zeros | {"initial_tape": "zero"})
