"""What a check draws at random is a problem that two correct codes can solve alike."""

from __future__ import annotations

import pytest

from elman.config.compose import compose_config
from elman.models.cells import registry
from elman.parity.compare import TOLERANCES
from elman.parity.experiment import EXACT, Experiment, Run
from elman.parity.shapes import shapes_for


@pytest.mark.parametrize("seed", [42, 43])
def test_a_matrix_that_starts_as_the_identity_does_not_let_states_grow(seed: int) -> None:
    config = compose_config(["model=m2rnn", "model.n_heads=3"]).model
    cell = registry.cell(config.cell)
    shapes, _ = shapes_for(cell, config.dim, config.options, quick=True)
    experiment = Experiment(cell, shapes[1], seed)
    exact, rounded = (
        experiment.run(Run("reference", "cpu", precision)) for precision in (EXACT, "fp32")
    )
    for name, wanted in exact.items():
        # Random matrices of this size grew gradients to 1e4, and errors of fp32 to 1e-3.
        assert (rounded[name] - wanted).norm() < TOLERANCES["fp32"] / 10 * wanted.norm(), name
