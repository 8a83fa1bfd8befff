"""Layers that the contract of every layer is checked on: each cell, variant and convolution."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import elman.layers

DIM = 8
Case = tuple[str, dict[str, Any]]
CASES: dict[str, Case] = {
    "e88": ("E88", {"n_heads": 3, "n_state": 4}),
    "e88-conv": ("E88", {"n_heads": 2, "n_state": 3, "expansion": 2.0, "use_conv": True}),
    "e88-full": (
        "E88",
        {
            "n_heads": 3,
            "n_state": 2,
            "use_conv": True,
            "use_gate": True,
            "use_output_norm": True,
            "use_write_gate": True,
            "use_value_residual": True,
            "head_mix": "input_weighted",
        },
    ),
    "e88-tied-constant": (
        "E88",
        {"n_heads": 2, "n_state": 3, "tie_kv": True, "decay_mode": "constant", "use_conv": True},
    ),
    "e88-weighted-sum": (
        "E88",
        {"n_heads": 3, "n_state": 2, "head_mix": "weighted_sum", "phantom_norm_gain": True},
    ),
    "e97": ("E97", {"n_heads": 3, "n_state": 4, "use_gate": True}),
    "e97-conv": (
        "E97",
        {"n_heads": 2, "n_state": 3, "expansion": 2.0, "use_conv": True, "use_write_gate": True},
    ),
    "e97-raw-linear": (
        "E97",
        {"n_heads": 2, "n_state": 3, "edit": "raw", "linear_state": True, "use_write_gate": True},
    ),
    "m2rnn": ("M2RNN", {"n_heads": 2, "n_state": 3}),
    "m2rnn-shared": (
        "M2RNN",
        {
            "n_heads": 3,
            "n_state": 2,
            "key_width": 4,
            "shared_keys": True,
            "use_conv": True,
            "use_l2_norm": True,
            "use_output_norm": True,
        },
    ),
    "e75": ("E75", {"n_heads": 3, "n_state": 4}),
    "e75-conv": ("E75", {"n_heads": 1, "n_state": 5, "use_conv": True, "expansion": 1.5}),
    "e1": ("E1", {}),
    "e1-conv": ("E1", {"use_conv": True, "expansion": 1.5, "recurrent_norm": "none"}),
    "e42": ("E42", {}),
    "e42-conv": ("E42", {"use_conv": True, "d_conv": 2}),
    "e0": ("E0", {}),
    "e0-conv-free": ("E0", {"use_conv": True, "recurrent_norm": "none", "expansion": 1.5}),
    "e0-orthogonal": ("E0", {"recurrent_norm": "scaled_orthogonal"}),
    "e4": ("E4", {}),
    "e4-rank-free": ("E4", {"rank": 3, "recurrent_norm": "none", "expansion": 1.5}),
    "e33": ("E33", {}),
    "e33-conv": ("E33", {"use_conv": True, "d_conv": 2, "expansion": 0.5}),
    "e36": ("E36", {}),
    "e36-conv-free": ("E36", {"use_conv": True, "recurrent_norm": "none"}),
    "e37": ("E37", {}),
    "e37-conv": ("E37", {"use_conv": True, "d_conv": 3, "expansion": 1.5}),
    "e39": ("E39", {}),
    "e39-conv-free": ("E39", {"use_conv": True, "recurrent_norm": "none"}),
    "e56": ("E56", {}),
    "e56-wider": ("E56", {"expansion": 1.5, "mamba2_init": "normal"}),
    "cudagru": ("CudaGRU", {}),
    "cudagru-wider": ("CudaGRU", {"expansion": 1.5}),
    "gru": ("GRU", {}),
    "gru-wider": ("GRU", {"expansion": 1.5}),
    "lstm": ("LSTM", {}),
    "lstm-narrower": ("LSTM", {"expansion": 0.5}),
    "llama": ("Llama", {"head_dim": 4, "mlp_width": 6}),
    "llama-context": ("Llama", {"head_dim": 2, "mlp_width": 5, "context": 3}),
    "mamba2": ("Mamba2", {"head_dim": 4, "n_state": 3}),
    "mamba2-groups": (
        "Mamba2",
        {"head_dim": 2, "n_state": 5, "n_groups": 2, "expansion": 1.5, "d_conv": 2},
    ),
    "mamba2-chunks": ("Mamba2", {"head_dim": 8, "n_state": 2, "chunk_size": 2}),
    "mamba3": ("Mamba3", {"head_dim": 4, "n_state": 6}),
    "mamba3-groups": (
        "Mamba3",
        {"head_dim": 2, "n_state": 4, "n_groups": 2, "expansion": 1.5, "rope_fraction": "1.0"},
    ),
    "fla-gdn": ("GatedDeltaNet", {"n_heads": 2}),
    "fla-gdn-narrow": (
        "GatedDeltaNet",
        {"n_heads": 3, "head_dim": 2, "expansion": 1.5, "conv_bias": True, "d_conv": 3},
    ),
    "fla-gdn-plain": (
        "GatedDeltaNet",
        {"expansion": 1.0, "use_conv": False, "use_gate": False, "allow_neg_eigval": True},
    ),
    "fla-gdn-sigmoid": ("GatedDeltaNet", {"n_heads": 4, "gate_activation": "sigmoid"}),
    "kda": ("KimiDeltaAttention", {"n_heads": 2}),
    "kda-plain": (
        "KimiDeltaAttention",
        {"n_heads": 2, "expansion": 1.5, "use_conv": False, "allow_neg_eigval": True},
    ),
    "gdn2": ("GatedDeltaNet2", {"n_heads": 2, "expansion": 0.5}),
    "gdn2-neg": ("GatedDeltaNet2", {"allow_neg_eigval": True, "conv_bias": True, "d_conv": 2}),
    "deltaproduct": ("GatedDeltaProduct", {"n_heads": 2, "expansion": 1.0}),
    "deltaproduct-plain": (
        "GatedDeltaProduct",
        {
            "n_heads": 2,
            "n_householder": 3,
            "use_forget_gate": False,
            "use_gate": False,
            "use_conv": False,
            "allow_neg_eigval": False,
        },
    ),
    "rwkv7": ("Rwkv7TimeMix", {"head_dim": 4, "decay_rank": 3, "gate_rank": 2, "a_rank": 2}),
    "cudalstm": ("CudaLSTM", {}),
    "cudalstm-narrower": ("CudaLSTM", {"expansion": 0.5}),
    "slstm": ("SLSTM", {"n_heads": 2}),
    "slstm-plain": ("SLSTM", {"n_heads": 3, "use_conv": False, "expansion": 1.5}),
    "e60": ("E60", {}),
    "e60-tied": ("E60", {"tied": True}),
    "e60-conv": ("E60", {"use_conv": True, "expansion": 1.5}),
    "e60-tied-conv": ("E60", {"tied": True, "use_conv": True, "expansion": 1.5}),
    "e60b": ("E60b", {"expansion": 1.5}),
    "e60b-conv": ("E60b", {"use_conv": True, "d_conv": 2}),
    "e60c": ("E60c", {"expansion": 1.5}),
    "e60c-conv": ("E60c", {"use_conv": True, "expansion": 1.5, "d_conv": 5}),
    "e63": ("E63", {"expansion": 1.5}),
    "e63-conv": ("E63", {"use_conv": True, "expansion": 1.5}),
    "e63-independent": ("E63", {"variant": "independent"}),
    "e63-h-dependent": ("E63", {"variant": "h_dependent", "expansion": 0.5}),
    "e63-h-dependent-conv": ("E63", {"variant": "h_dependent", "use_conv": True, "expansion": 1.5}),
    "e63-residual": ("E63", {"variant": "residual", "expansion": 1.5}),
    "e66": ("E66", {}),
    "e66-rank-3": ("E66", {"rank": 3, "use_conv": True, "expansion": 1.5}),
    "e67lr": ("E67lr", {}),
    "e67lr-rank-1": ("E67lr", {"rank": 1, "use_conv": True, "expansion": 1.5}),
    "e23": ("E23", {"n_slots": 3, "expansion": 1.5}),
    "e23-one-slot": ("E23", {"n_slots": 1}),
    "e23-zero": ("E23", {"n_slots": 3, "initial_tape": "zero"}),
    "e23-identity": ("E23", {"n_slots": 5, "write": "identity"}),
    "e23-shared": ("E23", {"n_slots": 2, "write": "shared", "expansion": 0.5}),
    "e34": ("E34", {}),
    "e34-conv": ("E34", {"use_conv": True, "expansion": 1.5}),
    "e59": ("E59", {}),
    "e59-conv": ("E59", {"use_conv": True, "expansion": 0.5}),
    "e59b": ("E59b", {"expansion": 1.5}),
    "e59c": ("E59c", {"use_conv": True, "d_conv": 2}),
    "e61": ("E61", {"expansion": 1.5}),
    "e61-tanh": ("E61", {"use_tanh": True, "use_conv": True}),
    "e61-additive": ("E61", {"variant": "additive"}),
    "e61-tied": ("E61", {"variant": "tied"}),
    "e62": ("E62", {"use_conv": True}),
    "e62-decay": ("E62", {"variant": "decay"}),
    "e62-tied": ("E62", {"variant": "tied"}),
    "e64": ("E64", {"use_conv": True, "expansion": 1.5}),
    "e65": ("E65", {"use_conv": True}),
    "e67": ("E67", {"use_conv": True}),
    "e68": ("E68", {"use_conv": True}),
    "e68-inverse": ("E68", {"variant": "inverse"}),
    "mingru": ("MinGRU", {}),
    "mingru-sequential": ("MinGRU", {"form": "sequential", "expansion": 1.5}),
    "minlstm": ("MinLSTM", {"expansion": 1.5}),
    "minlstm-sequential": ("MinLSTM", {"form": "sequential"}),
    "e74-diagonal": ("E74Diagonal", {"n_state": 5}),
    "e74-diagonal-simple": (
        "E74Diagonal",
        {"n_state": 5, "update": "simple", "projection": "tied_kq"},
    ),
    "e74-diagonal-ema": (
        "E74Diagonal",
        {"n_state": 7, "update": "ema", "nonlinearity": "rmsnorm", "use_conv": True},
    ),
    "e74-diagonal-retain": (
        "E74Diagonal",
        {"n_state": 5, "gate": "retain", "nonlinearity": "linear", "expansion": 1.5},
    ),
    "e74-diagonal-state": (
        "E74Diagonal",
        {"n_state": 3, "gate": "state", "nonlinearity": "frobnorm", "projection": "tied_kvq"},
    ),
    "e14": ("E14", {"n_state": 3}),
    "e14-square": ("E14", {"expansion": 0.5}),
    "e63m": ("E63m", {"n_state": 3, "expansion": 0.5}),
    "e63m-rnn": ("E63m", {"n_state": 3, "variant": "rnn"}),
    "e63m-lite": ("E63m", {"variant": "lite", "expansion": 0.25, "use_conv": True}),
    "e70": ("E70", {"n_state": 3}),
    "e70-final": (
        "E70",
        {"n_state": 3, "linear_state": True, "projection_norm": "spectral", "use_conv": True},
    ),
    "e71": ("E71", {"n_state": 5, "use_conv": True}),
    "e72": ("E72", {"n_state": 3}),
    "e72-inverse": ("E72", {"n_state": 3, "variant": "inverse"}),
    "e73": ("E73", {"n_state": 3, "use_conv": True, "d_conv": 2}),
    "e73-row": ("E73", {"n_state": 3, "variant": "row", "z_activation": "tanh"}),
    "e73-full": ("E73", {"n_state": 3, "variant": "full"}),
    "e73-delta": ("E73", {"n_state": 3, "rule": "delta", "variant": "full"}),
    "e73cp": ("E73cp", {"n_state": 3, "use_conv": True}),
    "e73cp-row": ("E73cp", {"n_state": 3, "variant": "row"}),
    "e74": ("E74", {"n_state": 3, "use_conv": True}),
    "e74-full": ("E74", {"n_state": 3, "projection": "full"}),
    "e74-tied": ("E74", {"n_state": 3, "projection": "tied_kvq", "gate": "input"}),
    "e74-retain": ("E74", {"n_state": 3, "gate": "retain", "nonlinearity": "rmsnorm"}),
    "e74-state": ("E74", {"n_state": 3, "gate": "state", "nonlinearity": "linear"}),
    "e74-residual": ("E74", {"n_state": 3, "update": "residual"}),
    "e74-ntm": ("E74", {"n_state": 3, "update": "ntm", "nonlinearity": "frobnorm"}),
    "e74-retrieved-gate": ("E74", {"n_state": 3, "update": "retrieved_gate"}),
    "e74-error-gate": ("E74", {"n_state": 3, "update": "retrieved_gate", "error_gate": True}),
    "e74-ema": ("E74", {"n_state": 3, "update": "ema", "projection": "tied_kq"}),
    "e74-simple": ("E74", {"n_state": 3, "update": "simple"}),
    "e74-lowrank": ("E74LowRank", {"n_state": 5, "rank": 3, "use_conv": True}),
    "e74-blockdiag": ("E74BlockDiagonal", {"n_state": 24, "use_conv": True}),
    "e74-fixed": ("E74FixedDecay", {"n_state": 3, "use_conv": True}),
    "e74-fixed-learned": ("E74FixedDecay", {"n_state": 3, "learned_decay": True}),
    "e75-vector-gate": ("E75", {"n_heads": 3, "n_state": 3, "linear_state": True}),
    "e75-post": ("E75", {"n_heads": 3, "n_state": 2, "use_conv": True, "conv_mode": "post"}),
}
"""By name: the layer and its options."""

cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def build(case: Case, **kwargs: Any) -> Any:
    """Return a layer of a fixed seed in which nothing hides behind a zero."""
    name, options = case
    torch.default_generator.manual_seed(2)
    layer = getattr(elman.layers, name)(DIM, **options, **kwargs)
    with torch.no_grad():
        for parameter in layer.parameters():
            # Biases, and the last projection of GRU and LSTM.
            if not parameter.is_meta and not parameter.any():
                parameter.normal_(std=0.5)
        if name == "E74LowRank":
            # The published scale of 0.01 hides every effect of the state behind rounding.
            layer.basis.mul_(50)
    return layer


def first_state(layer: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return what an absent state stands for: zeros, but for a seeded tape and an empty past."""
    start = {name: torch.zeros_like(one) for name, one in state.items()}
    if "past" in start:
        start["past"] = start["past"][:, :0]
    if getattr(layer, "seeded", False):
        start["tape"] = start["tape"] + layer.initial_tape
    return start


def beginning(layer: Any, x: Tensor, parts: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a state before the first step, with parts of it replaced."""
    return first_state(layer, layer(x)[1]) | parts
