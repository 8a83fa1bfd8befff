"""The emulation notices every fault that is planted in the channel engine's kernels."""

from __future__ import annotations

import pytest

from tests.emulation.channel_mutations import EDITS, QUICK, noticed, outcome

pytestmark = pytest.mark.compiler


def test_the_sources_as_they_are_have_no_fault() -> None:
    assert outcome(None) == "-"


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.slow] * (what not in QUICK)) for what in EDITS]
)
def test_a_planted_fault_is_noticed(what) -> None:
    said = outcome(what)
    assert noticed(said), said
    assert said != "crash"
