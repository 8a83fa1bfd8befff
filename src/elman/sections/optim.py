"""Group ``optim``: one section per optimizer."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from elman.sections.section import Count, Fraction, NonNegative, Positive, Section, rounded


class ScheduledConfig(Section):
    """What the optimizers with a warm-up and a schedule share.

    Args:
        name: Which optimizer.
        lr: Learning rate after the warm-up.
        warmup_steps: Optimizer steps in which the rate rises to ``lr``.
        warmup_share: The share of the budget in which it rises to ``lr``, in place of
            ``warmup_steps``: with a budget of time, a slower model takes fewer steps and warms up
            as long.
        schedule: What comes after it.
        final_lr_ratio: Rate at the end over ``lr``.
        weight_decay: Weight decay of matrices.
        beta1: Decay of AdamW's mean of gradients.
        beta2: Decay of AdamW's mean of their squares.
        eps: Added to the root of that.
    """

    name: Literal["adamw", "muon"]
    lr: Positive
    warmup_steps: Annotated[int, rounded, Field(ge=0)]
    warmup_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    schedule: Literal["cosine", "constant"]
    final_lr_ratio: Annotated[float, Field(ge=0, le=1)]
    weight_decay: NonNegative
    beta1: Fraction
    beta2: Fraction
    eps: Positive


class AdamWConfig(ScheduledConfig):
    """``optim=adamw``: fp32 master weights, decay on matrices only, warm-up then a schedule."""

    name: Literal["adamw"]


class MuonConfig(ScheduledConfig):
    """``optim=muon``: torch's Muon on the layers' matrices, AdamW on all else.

    Args:
        matrix_lr: Learning rate of the matrices, on the scale of an AdamW rate; it follows the
            same schedule as ``lr``.
        momentum: Momentum of the matrices.
        matrix_precision: Precision of the products that make an update orthogonal. ``auto`` is bf16
            on a GPU and fp32 on a CPU. A resumed run goes on in the one that it began with.
    """

    name: Literal["muon"]
    matrix_lr: Positive
    momentum: Fraction
    matrix_precision: Literal["auto", "fp32", "bf16"] = "auto"


class ScheduleFreeConfig(Section):
    """``optim=schedulefree``: schedule-free AdamW of the ``schedulefree`` library."""

    name: Literal["schedulefree"]
    lr: Positive
    warmup_steps: Annotated[int, rounded, Field(ge=0)]
    weight_decay: NonNegative
    beta1: Annotated[float, Field(gt=0, lt=1)]
    beta2: Fraction
    eps: Positive


class LegacyConfig(Section):
    """``optim=legacy``: AdamW with the periodic cosine of the January 2026 runs (comparison only).

    Weight decay on every parameter; the rate returns to ``lr`` every ``2 * warmup_steps`` steps.
    """

    name: Literal["legacy"]
    lr: Positive
    warmup_steps: Count
    weight_decay: NonNegative
    beta1: Fraction
    beta2: Fraction
    eps: Positive


OptimConfig = Annotated[
    AdamWConfig | MuonConfig | ScheduleFreeConfig | LegacyConfig, Field(discriminator="name")
]

OPTIMIZERS: dict[str, type[Section]] = {
    "adamw": AdamWConfig,
    "muon": MuonConfig,
    "schedulefree": ScheduleFreeConfig,
    "legacy": LegacyConfig,
}
"""Every optimizer by its name in YAML."""
