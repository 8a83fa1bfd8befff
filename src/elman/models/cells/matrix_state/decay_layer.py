"""Decay of a matrix state: one number in (0, 1) per head and step, always in fp32 or wider."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from elman.models.blocks import init
from elman.ops.common.gates import softplus_decay
from elman.ops.common.precision import wide_dtype


class Decay(nn.Module):
    """The parameters of a decay, which the engine computes from them and a projection.

    Attributes:
        map: Name of the map, as :class:`elman.ops.matrix_state.plan.Plan` has it.
        projected: Whether the map reads a projection: one number per head and step.
    """

    map: ClassVar[str]
    projected: ClassVar[bool] = True

    def reset_parameters(self) -> None:
        """Draw the parameters, if there are any."""

    def plan_parameters(self) -> dict[str, Tensor]:
        """Return the map's parameters [heads] by the plan's names."""
        return {}

    def factors(self, logit_bth: Tensor) -> Tensor:
        """Return the decays of all steps in fp32 or wider; a constant one [1, 1, heads]."""
        raise NotImplementedError


class MambaDecay(Decay):
    """decay = exp(-exp(A_log) * softplus(logit + dt_bias)) (matrix-state specification 12.1).

    bf16 would round everything above 0.998 to 1.
    """

    map = "mamba"

    def __init__(
        self,
        heads: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.a_log = nn.Parameter(torch.empty(heads, device=device, dtype=dtype))
        self.dt_bias = nn.Parameter(torch.empty(heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw rates and time steps."""
        init.mamba_decay_(self.a_log, self.dt_bias)

    def plan_parameters(self) -> dict[str, Tensor]:
        """Return A_log and the time steps' bias."""
        return {"decay": self.a_log, "dt_bias": self.dt_bias}

    def factors(self, logit_bth: Tensor) -> Tensor:
        """Return the map of the projection."""
        return softplus_decay(logit_bth, self.a_log, self.dt_bias)


class SigmoidDecay(Decay):
    """decay = sigmoid(logit), without parameters."""

    map = "sigmoid"

    def factors(self, logit_bth: Tensor) -> Tensor:
        """Return the sigmoid of the projection."""
        return torch.sigmoid(logit_bth.to(wide_dtype(logit_bth.dtype)))


class ConstantDecay(Decay):
    """decay = sigmoid(l), l learned per head and 4 at first; the same at every step."""

    map = "parameter"
    projected = False

    def __init__(
        self,
        heads: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.empty(heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set every logit to 4, a decay of 0.982."""
        nn.init.constant_(self.logit, 4.0)

    def plan_parameters(self) -> dict[str, Tensor]:
        """Return the decay itself."""
        return {"decay": torch.sigmoid(self.logit.to(wide_dtype(self.logit.dtype)))}

    def factors(self, logit_bth: Tensor) -> Tensor:
        """Return the parameter's decay, of every step."""
        return self.plan_parameters()["decay"].expand(1, 1, -1)
