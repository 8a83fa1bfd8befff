"""Which kernels run a call of the tape engine on a GPU, and what is said of the choice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elman.ops.tape.cuda import forms
from elman.ops.tape.cuda.forms import Shape, cluster_config
from elman.ops.tape.recurrences import CELLS

H200 = Shape("full", "bf16", 32, 768, 8, (9, 0), 132)


@pytest.mark.parametrize("write", CELLS)
@pytest.mark.parametrize(
    ("channels", "slots"), [(512, 8), (768, 8), (1024, 8), (512, 64), (768, 64), (8, 1)]
)
def test_the_models_run_as_clusters_on_an_h200(write: str, channels: int, slots: int) -> None:
    shape = replace(H200, write=write, channels=channels, slots=slots)
    form = forms.choose(shape)
    assert form.name == "cluster"
    assert form.why.startswith("cluster: one launch for the whole sequence")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"resets": True}, "it has no resets"),
        ({"number": "fp32"}, "its products are in bf16, this call is in fp32"),
        ({"capability": (8, 0)}, "it needs compute capability 9.0 or 10.0, this is 8.0"),
        ({"capability": (12, 0)}, "it needs compute capability 9.0 or 10.0, this is 12.0"),
        ({"channels": 769}, "it computes pairs of channels, and there are 769"),
        ({"channels": 4096}, "the matrices and the tape do not fit into the registers"),
        ({"slots": 256}, "the matrices and three copies of the tape do not fit"),
    ],
)
def test_another_call_runs_step_by_step_and_the_reason_is_said(changed, reason: str) -> None:
    form = forms.choose(replace(H200, **changed))
    assert form.name == "stepwise"
    assert f"stepwise: 1 product and 1 kernel per step; not cluster: {reason}" in form.why


@pytest.mark.parametrize(
    ("channels", "slots", "blocks", "rows"), [(512, 8, 8, 3), (768, 8, 16, 5), (64, 8, 1, 1)]
)
def test_as_many_blocks_as_the_matrices_need(
    channels: int, slots: int, blocks: int, rows: int
) -> None:
    config = cluster_config(replace(H200, channels=channels, slots=slots), back=False)
    assert config is not None
    assert (config.cluster, config.rows) == (blocks, rows)


def test_a_tape_too_large_for_all_rows_at_once_takes_turns() -> None:
    """Fewer rows of 64 slots than clusters would have to take fit at a time."""
    config = cluster_config(replace(H200, slots=64), back=True)
    assert config is not None
    assert config.rows < 5
