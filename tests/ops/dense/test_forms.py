"""Which kernels run a dense call on a GPU, and what is said of the choice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elman.ops.dense.cuda import forms
from elman.ops.dense.cuda.cluster_config import SHARED_LIMIT, choose
from elman.ops.dense.cuda.forms import Shape
from elman.ops.dense.recurrences import CELLS

H200 = Shape("tanh", "bf16", 32, 1280, 0, (9, 0), 132)


def test_a_usual_model_runs_as_clusters_on_an_h200() -> None:
    form = forms.choose(H200)
    assert form.name == "cluster"
    assert form.why.startswith("cluster: one launch for the whole sequence")


@pytest.mark.parametrize("step", CELLS)
@pytest.mark.parametrize("resets", [False, True])
def test_every_step_runs_as_clusters(step, resets) -> None:
    assert forms.choose(replace(H200, step=step, channels=512, resets=resets)).name == "cluster"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"resets": True}, "it has no resets"),
        ({"number": "fp32"}, "its products are in bf16, this call is in fp32"),
        ({"capability": (8, 0)}, "it needs compute capability 9.0 or 10.0, this is 8.0"),
        ({"capability": (12, 0)}, "it needs compute capability 9.0 or 10.0, this is 12.0"),
        ({"channels": 1281}, "it computes pairs of channels, and there are 1281"),
        ({"channels": 4096}, "the matrix does not fit into the registers and shared memory"),
        ({"step": "lstm", "channels": 1024}, "the matrix does not fit"),
        ({"step": "gru", "channels": 1024}, "the matrix does not fit"),
    ],
)
def test_another_call_runs_step_by_step_and_the_reason_is_said(changed, reason) -> None:
    form = forms.choose(replace(H200, **changed))
    assert form.name == "stepwise"
    assert f"not cluster: {reason}" in form.why


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize(
    ("step", "channels", "batch", "blocks", "rows"),
    [
        ("tanh", 512, 32, 8, 3),
        ("tanh", 768, 32, 8, 3),
        ("tanh", 1024, 32, 16, 5),
        ("tanh", 1280, 32, 16, 5),
        ("tanh", 1536, 256, 16, 8),
        ("tanh", 64, 1, 1, 1),
        ("lstm", 768, 32, 16, 5),
        ("gru", 512, 32, 8, 3),
        ("gru", 768, 32, 16, 5),
        ("normalized_scalar", 1280, 32, 16, 5),
    ],
)
def test_as_many_blocks_as_the_matrix_needs(step, channels, batch, blocks, rows, back) -> None:
    config = choose(CELLS[step], channels, batch, back=back)
    assert config is not None
    assert (config.cluster, config.rows) == (blocks, rows)
    assert config.shared_bytes <= SHARED_LIMIT


def test_a_smaller_gpu_has_fewer_clusters_of_more_rows() -> None:
    config = choose(CELLS["tanh"], 512, 32, 66, back=False)
    assert config is not None
    assert (config.cluster, config.rows) == (8, 5)
