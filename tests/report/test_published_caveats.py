"""What a reader must know before comparing a published figure with a run of today."""

from __future__ import annotations

import pytest

from elman.config.compose import compose_config
from elman.published import published


def test_every_published_e70_says_that_its_decay_did_not_learn() -> None:
    records = [record for record in published() if record.figures.model.startswith("e70")]
    assert len(records) == 4
    for record in records:
        assert "the decay stayed at 0.9 (0.8984 in bf16)" in record.caveats
        assert "model.learned_decay=false" in record.caveats


@pytest.mark.parametrize("name", ["e70", "e70_linear", "e70_linear_2176x20"])
def test_what_the_caveat_names_is_an_option_of_the_same_count(name: str) -> None:
    model = compose_config([f"model={name}", "model.learned_decay=false"]).model
    assert model.options["learned_decay"] is False
    assert model.expected_params == compose_config([f"model={name}"]).model.expected_params
