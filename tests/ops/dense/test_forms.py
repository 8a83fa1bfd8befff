"""Which kernels run a dense call on a GPU, and what is said of the choice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elman.ops.common.cuda.clusters import clusters_at_once
from elman.ops.dense.cuda import forms
from elman.ops.dense.cuda.cluster_config import choose
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
        ({"number": "fp32"}, "its products are in bf16, this call is in fp32"),
        ({"capability": (7, 5)}, "it needs compute capability 9.0 or 10.0, this is 7.5"),
        ({"channels": 1281}, "it computes pairs of channels, and there are 1281"),
        ({"step": "gru", "channels": 1024}, "the matrix does not fit"),
        ({"channels": 4480}, "the matrix does not fit into the registers and shared memory"),
    ],
)
def test_another_call_runs_step_by_step_and_the_reason_is_said(changed, reason) -> None:
    form = forms.choose(replace(H200, **changed))
    assert form.name == "stepwise"
    assert f"not cluster: {reason}" in form.why


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"capability": (8, 0), "multiprocessors": 108}, "it needs compute capability 9.0 or 10.0"),
        ({"capability": (8, 9), "multiprocessors": 142}, "it needs compute capability 9.0 or 10.0"),
        ({"capability": (12, 0)}, "it needs compute capability 9.0 or 10.0, this is 12.0"),
        ({"channels": 2048}, "the matrix does not fit into the registers and shared memory of 16"),
        ({"channels": 3584}, "the matrix does not fit"),
        ({"step": "lstm", "channels": 1024}, "the matrix does not fit"),
    ],
)
def test_where_no_cluster_is_or_fits_groups_run_a_call(changed, reason) -> None:
    form = forms.choose(replace(H200, **changed))
    assert form.name == "groups"
    assert form.why.startswith("groups: one launch for the whole sequence")
    assert f"; not cluster: {reason}" in form.why


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"number": "fp32"}, "its products are in bf16, this call is in fp32"),
        ({"capability": (7, 5)}, "it runs on compute capability 8.0, 8.6, 8.7, 8.9, 9.0, 10.0, 12"),
        ({"step": "gru"}, "the step has more than one product and one exchange"),
        ({"channels": 2049}, "it computes pairs of channels, and there are 2049"),
        ({"channels": 4480}, "the registers and shared memory of 132 multiprocessors"),
        ({"channels": 2048, "multiprocessors": 20}, "shared memory of 20 multiprocessors"),
        ({"channels": 3072, "batch": 512}, "by estimate a step forward and back would take"),
    ],
)
def test_why_groups_do_not_run_a_call_is_said(changed, reason) -> None:
    form = forms.choose(replace(H200, **changed))
    assert form.name == "stepwise"
    assert reason in form.why.partition("not groups: ")[2]


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"step": "slstm"}, "it carries h and c, and the state of step slstm has 4 parts"),
        ({"heads": 4}, "it multiplies by one matrix, and there is one for each of 4 heads"),
    ],
)
def test_what_groups_cannot_run_is_said(changed, reason) -> None:
    form = forms.choose(replace(H200, capability=(8, 0), multiprocessors=108, **changed))
    assert form.name == "stepwise"
    assert f"; not groups: {reason}" in form.why


def test_heads_run_as_clusters_of_their_own() -> None:
    shape = replace(H200, step="slstm", channels=1152, heads=4)
    assert forms.choose(shape).name == "cluster"
    for back in (False, True):
        config = forms.cluster_config(shape, back=back)
        assert config is not None
        assert (config.channels, config.heads) == (320, 4)
        at_once = clusters_at_once(132)[config.cluster]
        assert config.heads * -(-shape.batch // config.rows) <= at_once
    odd = forms.choose(replace(shape, channels=4 * 287))
    assert "not cluster: it computes pairs of channels, and there are 287" in odd.why


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
        ("gru_reset_after", 768, 32, 16, 5),
        ("normalized_scalar", 1280, 32, 16, 5),
    ],
)
def test_as_many_blocks_as_the_matrix_needs(step, channels, batch, blocks, rows, back) -> None:
    config = choose(CELLS[step], channels, batch, back=back)
    assert config is not None
    assert (config.cluster, config.rows) == (blocks, rows)


def test_a_smaller_gpu_has_fewer_clusters_of_more_rows() -> None:
    config = choose(CELLS["tanh"], 512, 32, 66, back=False)
    assert config is not None
    assert (config.cluster, config.rows) == (8, 5)
