"""Which variants of the packages' kernels are tried: without those that never were the fastest.

Every variant takes compiling and timing, and a first use waits for it. The rules here were read
from the times of all variants of models of 100M parameters on an H200. Of no kernel is the fastest
variant that a rule leaves out more than 2 % faster than the fastest that it keeps.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from elman.kernels.triton_variants import at_most, prune

Kept = Callable[..., list[Any]]
_DPLR = at_most(64, "BK", "BV", least=16, longest="K")
# A thread has a tile of each of twelve sequences. With 128 or 256 numbers of each, which the
# package tries too, the compiler alone takes half a minute or more, and the code is slow.
_MIXING = at_most(32, "BT", "BD")
_OF_ROWS = at_most(16, "BT", "BD", least=8)
_TOKENS = at_most(16, "BH", "K", least=8)

RULES: dict[str, dict[str, Kept]] = {
    "fla.modules.norm.l2norm": {"l2norm_fwd_kernel": _OF_ROWS, "l2norm_bwd_kernel": _OF_ROWS},
    "fla.modules.norm.fused_norm_gate": {
        "layer_norm_gated_fwd_kernel": _OF_ROWS,
        "layer_norm_gated_bwd_kernel": _OF_ROWS,
    },
    "fla.ops.common.chunk_scaled_dot_kkt": {
        "chunk_scaled_dot_kkt_fwd_kernel": at_most(32, "BT", "BK", least=32)
    },
    "fla.ops.gla.chunk": {"chunk_gla_fwd_kernel_o": at_most(64, "BK", "BV", least=64)},
    "fla.ops.kda.chunk_bwd": {
        "chunk_kda_bwd_kernel_wy_dqkg_fused": at_most(32, "BK", "BV", least=32)
    },
    "fla.ops.kda.chunk_intra_token_parallel": {
        "chunk_kda_fwd_kernel_intra_token_parallel": _TOKENS
    },
    "fla.ops.gdn2.chunk_bwd": {
        "chunk_gdn2_bwd_kernel_wy_dqkg_fused": at_most(16, "BK", "BV", least=16)
    },
    "fla.ops.gdn2.chunk_intra_token_parallel": {
        "chunk_gdn2_fwd_kernel_intra_token_parallel": _TOKENS
    },
    "fla.ops.generalized_delta_rule.dplr.chunk_o_fwd": {"chunk_dplr_fwd_kernel_o": _DPLR},
    "fla.ops.generalized_delta_rule.dplr.chunk_o_bwd": {"chunk_dplr_bwd_kernel_dv": _DPLR},
    "fla.ops.rwkv7.fused_addcmul": {
        "fused_addcmul_fwd_kernel": _MIXING,
        "addcmul_bwd_kernel1": _MIXING,
    },
}
"""By module and kernel, what is kept of the kernel's variants."""


def leave_variants_out(loaded: dict[str, ModuleType] | None = None) -> None:
    """Apply :data:`RULES` to the modules that are loaded.

    A kernel that another version of the package does not have, or does not tune, stays as it is.

    Args:
        loaded: Modules by name; None is those of this process.
    """
    modules = sys.modules if loaded is None else loaded
    for name, rules in RULES.items():
        for kernel, kept in rules.items():
            prune(getattr(modules.get(name), kernel, None), kept)
