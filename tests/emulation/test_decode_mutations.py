"""The emulation notices every fault that is planted in the decoding kernels."""

from __future__ import annotations

import pytest

from tests.emulation.decode_mutations import EDITS, QUICK, noticed, outcome, sources

pytestmark = pytest.mark.compiler

ALL = sources()


@pytest.mark.parametrize("file", EDITS)
def test_the_sources_as_they_are_have_no_fault(file) -> None:
    assert outcome(file) == "-"


@pytest.mark.parametrize(
    "what", [pytest.param(what, marks=[pytest.mark.slow] * (what not in QUICK)) for what in ALL]
)
def test_a_planted_fault_is_noticed(what) -> None:
    said = outcome(*ALL[what])
    assert noticed(said), said
    assert said not in ("crash", "never ends")
