"""The emulation notices every fault that is planted in the group kernels."""

from __future__ import annotations

import pytest

from tests.emulation.group_mutations import EDITS, QUICK, outcome
from tests.emulation.mutations import noticed

pytestmark = pytest.mark.compiler


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.slow] * (what not in QUICK)) for what in EDITS]
)
def test_a_planted_fault_is_noticed(what: str) -> None:
    said = outcome(what)
    assert noticed(said), said
    assert said != "crash"
