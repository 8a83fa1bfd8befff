"""The emulation notices every fault that is planted in the kernels."""

from __future__ import annotations

from typing import Any

import pytest

from tests.emulation import (
    channel_faults,
    cluster_faults,
    decode_faults,
    matrix_faults,
    stepwise_faults,
)
from tests.emulation.faults import BARRIER, BUFFER, COUNT, INDEX, SUM, TAIL, Engine, Fault, noticed

pytestmark = pytest.mark.compiler

MODULES = (matrix_faults, channel_faults, stepwise_faults, cluster_faults, decode_faults)
ENGINES: dict[str, Engine] = {
    name: engine for module in MODULES for name, engine in module.ENGINES.items()
}


# Engines whose kernels share code with another's plant these in slow runs alone.
RARELY = {
    "dense": (INDEX, BUFFER, SUM),
    "tape": (INDEX, BUFFER, BARRIER),
    "dense cluster": (INDEX, SUM),
    "dense group": (INDEX, SUM, TAIL, COUNT),
    "tape cluster": (INDEX, TAIL, COUNT),
    "draw": (INDEX, SUM),
}


def planted(often: bool) -> list[Any]:
    """Return parameters for the faults that every run plants, or for the others."""
    return [
        pytest.param(name, fault, id=f"{name}: {fault.what}")
        for name, engine in ENGINES.items()
        for fault in engine.faults
        if (fault.first and fault.mechanism not in RARELY.get(name, ())) == often
    ]


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_has_faults_of_the_mechanisms_that_all_share(name: str) -> None:
    assert {fault.mechanism for fault in ENGINES[name].faults} >= {
        INDEX,
        BARRIER,
        SUM,
        TAIL,
    }


@pytest.mark.parametrize("name", ENGINES)
def test_the_sources_as_they_are_have_no_fault(name: str) -> None:
    engine = ENGINES[name]
    assert engine.outcome(engine.faults[0].repaired()) == "-"


def expect_noticed(name: str, fault: Fault) -> None:
    said = ENGINES[name].outcome(fault)
    assert noticed(said), said
    # A wrong index in the matrix kernels may leave the memory of the process.
    assert said != "crash" or name == "matrix"


@pytest.mark.parametrize(("name", "fault"), planted(often=True))
def test_a_planted_fault_is_noticed(name: str, fault: Fault) -> None:
    expect_noticed(name, fault)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fault"), planted(often=False))
def test_a_further_planted_fault_is_noticed(name: str, fault: Fault) -> None:
    expect_noticed(name, fault)


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["e70", "e73-full", "e75"])
@pytest.mark.parametrize(
    "fault",
    [pytest.param(one, id=one.what) for one in ENGINES["matrix"].faults if one.first],
)
def test_a_planted_fault_is_noticed_in_other_matrix_cells(fault: Fault, plan: str) -> None:
    said = matrix_faults.outcome(fault, plan)
    assert noticed(said), said
