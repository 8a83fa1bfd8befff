"""Stands for the count of a model's operations, which builds the model."""

from __future__ import annotations

from typing import Any

from elman.sections.model import ModelConfig


def flops_per_byte(model: ModelConfig, train: Any) -> float:
    """Return about what training takes for a byte."""
    return 6.0 * (model.expected_params or model.dim)
