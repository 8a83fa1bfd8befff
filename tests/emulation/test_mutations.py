"""The emulation notices every fault that is planted in the kernels."""

from __future__ import annotations

import pytest

from tests.emulation.mutations import mutations, outcome

ALL = mutations()


def test_the_sources_as_they_are_have_no_fault() -> None:
    assert outcome(None, "e88") == "-"


@pytest.mark.parametrize("mutation", ALL, ids=[mutation.what for mutation in ALL])
def test_a_planted_fault_is_noticed(mutation) -> None:
    assert outcome(mutation, "e88") != "-"


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["e70", "e73-full", "e75"])
@pytest.mark.parametrize("mutation", ALL, ids=[mutation.what for mutation in ALL])
def test_a_planted_fault_is_noticed_in_other_cells(mutation, plan) -> None:
    assert outcome(mutation, plan) != "-"
