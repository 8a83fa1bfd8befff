"""What the gated dense layers share: one input branch, blocks of gates, a product with the state.

Shape legend: b batch, t time, d model width, i = int(d * expansion) channels of the state,
k = blocks * i channels of the pre-activations, p = products * i of them that read the state,
r rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from elman.models import init
from elman.models.conv import CausalConv
from elman.models.layers.gates import self_gate
from elman.models.layers.mixer import Mixer
from elman.models.registry.spec import Value
from elman.models.state import State
from elman.ops.dense.gated_op import Step, gated
from elman.ops.precision import wide_dtype


@dataclass(frozen=True)
class Plan:
    """The recurrence of one cell, in the terms of :func:`elman.ops.dense.gated_op.gated`.

    Args:
        step: Name of the step.
        biases: Initial bias of each block.
        products: Gain of the orthogonal recurrent matrix of each block that reads the state,
            or of both its factors.
        rank: Rank of the recurrent product; None keeps it dense.
    """

    step: Step
    biases: tuple[float, ...]
    products: tuple[float, ...]
    rank: int | None = None


class GatedDense(Mixer):
    """u = silu(W_in x), h' = step(W u + b, R h), y = W_out (h' silu(h')).

    Vector-state specification 2.2, 3.12 and 4. State: ``h`` [B, i] in fp32 or wider, and with
    use_conv ``conv``, the last d_conv - 1 inputs of the convolution. A cell is its :meth:`plan`.

    Args:
        dim: Model width.
        backend: As ``kernels.backend``.
        device: Where the weights are made.
        dtype: Their dtype.
        options: The cell's options.
    """

    def __init__(
        self,
        dim: int,
        *,
        backend: str = "auto",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Value,
    ) -> None:
        super().__init__(dim, backend=backend, **options)
        to: dict[str, Any] = {"device": device, "dtype": dtype}
        given = self.settings
        self.width = width = int(dim * given.number("expansion"))
        self.recurrence = plan = self.plan()
        self.in_proj = nn.Parameter(torch.empty(width, dim, **to))
        self.conv = (
            CausalConv(width, given.count("d_conv"), bias=True, **to)
            if given.flag("use_conv")
            else None
        )
        self.make_input(to)
        # One bias per channel of a block, block after block, like the rows of the matrices.
        self.bias = nn.Parameter(torch.empty(len(plan.biases) * width, **to))
        rows = len(plan.products) * width
        shapes = (
            {"recurrent": (rows, width)}
            if plan.rank is None
            else {"recurrent_up": (rows, plan.rank), "recurrent_down": (plan.rank, width)}
        )
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape, **to)))
        self.out_proj = nn.Parameter(torch.empty(dim, width, **to))
        self.dropout = nn.Dropout(given.number("dropout"))
        self.reset_parameters()

    def plan(self) -> Plan:
        """Return the recurrence that the options ask for; ``self.width`` is known."""
        raise NotImplementedError
