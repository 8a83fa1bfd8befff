"""Which backend runs the layers of these tests, and how their kernels are compiled."""

from __future__ import annotations

import pytest

from elman.models.cells.common import mixer
from elman.models.cells.declaration import Cell
from tests.ops.whole import compile_together


@pytest.fixture(autouse=True)
def _kernels_are_compiled_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests run nearly every kernel, and tests/ops has the libraries of all."""
    compile_together(monkeypatch)


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
