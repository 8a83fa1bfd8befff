"""Parameters of a layer, option by option, against matrix-state 12.2 and vector-state 2.2."""

from __future__ import annotations

from typing import Any

import pytest

import elman.layers

# D 10, H 3, n 4, expansion 1 unless said; every count is spelled out from the specification.
D, H, N = 10, 3, 4
BASE = D * 3 * H * N + D * H + 2 * H + H * N * D
E88: list[tuple[dict[str, Any], int]] = [
    ({}, BASE),
    ({"expansion": 2.0}, D * (2 * 12 + 24) + D * H + 2 * H + 24 * D),
    ({"tie_kv": True}, BASE - D * 12),
    ({"use_conv": True}, BASE + 4 * 36),
    ({"use_conv": True, "d_conv": 3}, BASE + 3 * 36),
    ({"use_conv": True, "tie_kv": True}, BASE - D * 12 + 4 * 24),
    ({"decay_mode": "simple"}, BASE - 2 * H),
    ({"decay_mode": "constant"}, BASE - D * H - H),
    ({"decay_mode": "none"}, BASE - D * H - 2 * H),
    ({"use_gate": True}, BASE + D * 12),
    ({"use_write_gate": True}, BASE + D * H),
    ({"use_value_residual": True}, BASE + 12),
    ({"use_output_norm": True}, BASE + 4),
    ({"phantom_norm_gain": True}, BASE + 4),
    ({"head_mix": "per_head"}, BASE),
    ({"head_mix": "weighted_sum"}, BASE - 12 * D + H + 4 * D),
    ({"head_mix": "input_weighted"}, BASE - 12 * D + D * H + 4 * D),
    ({"head_mix": "sum"}, BASE - 12 * D + 4 * D),
    ({"linear_state": True}, BASE),
    ({"use_self_gate": True}, BASE),
]
OTHERS: list[tuple[str, dict[str, Any], int]] = [
    ("E75", {"n_heads": 3, "n_state": 4}, D * D + 4 * 12 * D + 12 + 12 * D),
    ("E75", {"n_heads": 1, "n_state": 4, "expansion": 1.55}, D * 15 + 4 * 4 * 15 + 4 + 4 * D),
    (
        "E75",
        {"n_heads": 2, "n_state": 4, "use_conv": True},
        D * D + 4 * 8 * D + 8 + 8 * D + 5 * D,
    ),
    ("E1", {}, 3 * D * D + 2 * D * D + D),
    ("E1", {"expansion": 1.55, "use_conv": True}, 3 * D * 15 + 2 * 15 * 15 + 15 + 15 * 5),
    ("E42", {}, 2 * D * D + D * D + D),
    (
        "E42",
        {"expansion": 1.55, "use_conv": True, "d_conv": 2},
        2 * D * 15 + 15 * 15 + 15 + 15 * 3,
    ),
]
ALL = [("E88", {"n_heads": H, "n_state": N} | options, count) for options, count in E88] + OTHERS


@pytest.mark.parametrize(
    ("name", "options", "count"),
    ALL,
    ids=[f"{name}-{'-'.join(map(str, options.values()))}" for name, options, _ in ALL],
)
def test_count(name, options, count) -> None:
    layer = getattr(elman.layers, name)(D, **options, device="meta")
    assert sum(parameter.numel() for parameter in layer.parameters()) == count
