"""Gates and norms that several layers apply outside their recurrence."""

from __future__ import annotations

from elman.ops.common.gates import KEY_EPS, self_gate, unit

__all__ = ["KEY_EPS", "self_gate", "unit"]
