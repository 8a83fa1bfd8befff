"""Whatever a call's sizes: the config that an engine chooses fits the GPU and covers the call."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from elman.base.errors import UserError
from elman.ops.channel.cuda.tile_config import LANES, MAX_SHARED, TileConfig, row_config
from elman.ops.channel.plan import Plan
from elman.ops.common.cuda.clusters import MAX_ROWS, SHARED_LIMIT
from elman.ops.common.slices import Slice
from elman.ops.dense.cuda import cluster_config as dense_cluster
from elman.ops.dense.cuda import group_config
from elman.ops.dense.recurrences import CELLS as DENSE
from elman.ops.tape.cuda import cluster_config as tape_cluster
from elman.ops.tape.recurrences import CELLS as TAPE
from tests.properties import examples

PAIRS = st.integers(1, 800).map(lambda half: 2 * half)
ROWS = st.sampled_from([1, 32, 256]) | st.integers(1, 600)
MULTIPROCESSORS = st.integers(20, 160)
SURE = 768
"""Numbers of a step's pre-activations up to which clusters always have room for the matrix."""


@examples(max_examples=150)
@given(st.sampled_from(list(DENSE)), PAIRS, ROWS, MULTIPROCESSORS, st.booleans(), st.booleans())
def test_dense_clusters(step, channels, batch, multiprocessors, back, resets) -> None:
    cell = DENSE[step]
    heads = 1 + batch % 4 if cell.per_channel else 1
    sizes = (channels, batch, multiprocessors)
    config = dense_cluster.choose(cell, *sizes, back=back, resets=resets, heads=heads)
    if config is None:
        assert cell.blocks * channels > SURE
        return
    assert config.fits
    assert config.shared_bytes <= SHARED_LIMIT
    assert config.own * config.cluster == config.channels >= channels
    assert config.channels - channels < max(32, 16 * config.cluster)
    assert config.rows <= min(batch, MAX_ROWS)
    assert 4 * config.kept <= 255
    assert config.kept <= config.fragments
    assert (config.back, config.resets, config.heads) == (back, resets, heads)


@examples(max_examples=150)
@given(
    st.sampled_from(list(DENSE)),
    PAIRS,
    ROWS,
    MULTIPROCESSORS,
    st.sampled_from(list(group_config.SHARED_LIMITS.values())),
    st.booleans(),
)
def test_dense_groups(step, channels, batch, multiprocessors, shared, back) -> None:
    machine = group_config.Machine(multiprocessors, shared)
    config = group_config.choose(DENSE[step], channels, batch, machine, back=back)
    if config is None:
        assert DENSE[step].blocks * channels > SURE
        return
    at_once = config.at_once(multiprocessors)
    assert config.fits(shared)
    assert config.shared_bytes <= shared
    assert config.own * config.group == config.channels >= channels
    assert 1 <= at_once <= multiprocessors // config.group
    assert config.launches(batch, multiprocessors) * at_once * config.rows >= batch
    assert config.rows <= 8 or config.rows % 8 == 0
    assert config.rows <= group_config.MAX_ROWS


@examples(max_examples=150)
@given(st.sampled_from(list(TAPE)), PAIRS, st.integers(1, 80), ROWS, MULTIPROCESSORS, st.booleans())
def test_tape_clusters(write, channels, slots, batch, multiprocessors, back) -> None:
    sizes = (channels, slots, batch, multiprocessors)
    config = tape_cluster.choose(TAPE[write], *sizes, back=back)
    if config is None:
        assert channels > SURE // 2 or slots > 16
        return
    assert config.fits
    assert config.shared_bytes <= SHARED_LIMIT
    assert config.own * config.cluster == config.channels >= channels
    assert config.rows * config.parts <= config.warps - back
    assert 64 * config.per * config.parts >= config.own
    assert 4 * config.kept <= 255
    assert back or not config.ahead


@examples(max_examples=100)
@given(
    st.integers(1, 9000), st.sampled_from([torch.bfloat16, torch.float32]), st.sampled_from([4, 16])
)
def test_channel_rows(channels, io, unit) -> None:
    plan = Plan("e59b", (("x", Slice(0, 0)),))
    config = TileConfig(plan, io, torch.float32, unit=unit)
    if channels > 8192:
        with pytest.raises(UserError, match="more than a block has room for"):
            row_config(config, channels)
        return
    assume(io == torch.bfloat16 or channels <= 4096)
    found = row_config(config, channels)
    assert found.per * found.threads >= channels > found.per * (found.threads - LANES)
    assert found.threads <= 1024
    assert max(found.shared_bytes(back) for back in (False, True)) <= MAX_SHARED
