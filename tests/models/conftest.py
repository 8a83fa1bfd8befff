"""Which backend runs the layers of these tests."""

from __future__ import annotations

import pytest

from elman.models.cells.common import mixer
from elman.models.cells.declaration import Cell


@pytest.fixture(autouse=True)
def _matrix_state_runs_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """``auto`` is ``reference`` for cells of the matrix-state engine.

    Their kernels are compiled for every size and option, a second each, and these tests have
    hundreds; tests/ops/matrix_state/test_matrix_kernels.py compares kernels with the reference,
    layer by layer.
    """
    choose = mixer.choose_backend

    def chosen(cell: Cell, requested: str, device_type: str) -> str:
        if requested == "auto" and cell.engine == "matrix_state":
            requested = "reference"
        return choose(cell, requested, device_type)

    monkeypatch.setattr(mixer, "choose_backend", chosen)
