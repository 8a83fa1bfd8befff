"""docs/triton.md quotes the kernels as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elman.ops.matrix_state.triton import launch

PAGE = (Path(__file__).parents[2] / "docs" / "triton.md").read_text()
QUOTED = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
SOURCES = {path.name: path.read_text() for path in Path(launch.__file__).parent.glob("*.py")}


def bare(text: str) -> str:
    """Return a text without comments on lines of their own."""
    return re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE)


@pytest.mark.parametrize("number", range(len(QUOTED)))
def test_every_quotation_stands_in_a_kernel(number: int) -> None:
    assert any(bare(QUOTED[number]) in bare(text) for text in SOURCES.values()), QUOTED[number]


def test_every_file_is_named() -> None:
    named = {name for name in SOURCES if f"`{name}`" in PAGE}
    assert named == SOURCES.keys() - {"__init__.py"}
    assert len(QUOTED) >= 5
