"""A model cut by FSDP2, by elman or by hand, computes what the whole one computes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from elman.models.cells import registry

SCRIPT = Path(__file__).with_name("sharded_models.py")
QUICK = ["llama", "e88_tiny", "e1", "e23", "mingru"]
"""One of each engine; e1 has a power iteration, which reads its weights outside of a call."""
MIXED, LARGE_VOCABULARY = "e88_tiny+llama+e1+mingru+rwkv7+gru", "e1 of 1000"
NAMES = {"e88": "e88_tiny", "e75": "e75h4n16", "fla_gdn": "fla-gdn"}
"""Models of cells that have none of their own name."""


def compared(models: list[str]) -> dict[str, list[dict[str, Any]]]:
    """Return what two ranks found, by model."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *models],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in models}
    for line in done.stdout.splitlines():
        one = json.loads(line)
        found[one.pop("model")].append(one)
    assert all(len(ranks) == 2 for ranks in found.values()), done.stderr
    return found


def assert_equal(found: dict[str, list[dict[str, Any]]]) -> None:
    for name, ranks in found.items():
        for one in ranks:
            assert "error" not in one, (name, one)
            assert {"by elman", "by hand"} <= one.keys()
            assert max(off for how, off in one.items() if how != "rank") < 1e-6, (name, one)


@pytest.fixture(scope="module")
def quick() -> dict[str, list[dict[str, Any]]]:
    """Return what one pair of ranks found; the last model changes how losses are computed."""
    return compared([*QUICK, MIXED, LARGE_VOCABULARY])


def test_a_sharded_model_of_each_engine_has_the_gradients_of_the_whole_one(quick) -> None:
    assert_equal({name: quick[name] for name in QUICK})


def test_a_sharded_mixed_stack_has_the_gradients_of_the_whole_one(quick) -> None:
    assert_equal({MIXED: quick[MIXED]})


def test_a_shared_model_of_a_large_vocabulary_has_the_gradients_of_the_whole_one(quick) -> None:
    assert_equal({LARGE_VOCABULARY: quick[LARGE_VOCABULARY]})
    assert all("copied" in one for one in quick[LARGE_VOCABULARY])  # DistributedDataParallel


@pytest.mark.slow
def test_a_sharded_model_of_every_cell_has_the_gradients_of_the_whole_one() -> None:
    own = [cell.name for cell in registry.cells().values() if cell.layer.startswith("elman.")]
    assert_equal(compared([NAMES.get(name, name) for name in own]))
