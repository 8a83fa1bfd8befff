"""What the checks of a model's layer found, and how it is written to a file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from elman.models.backends import on_slow_path
from elman.parity.compare import Comparison
from elman.parity.experiment import Run


@dataclass(frozen=True)
class Check:
    """One backend in one precision at one shape.

    Attributes:
        run: Backend, device and precision.
        shape: Name of the shape.
        sizes: Its sizes, for people.
        comparisons: One for every output, state and gradient.
        part: The checked part: the name of the cell, or of the residual stream's add and norm.
    """

    run: Run
    shape: str
    sizes: str
    comparisons: Sequence[Comparison]
    part: str = ""

    @property
    def passed(self) -> bool:
        """Whether every tensor is close enough."""
        return all(one.passed for one in self.comparisons)

    @property
    def worst(self) -> Comparison:
        """See :func:`worst_of`."""
        return worst_of(self.comparisons)


def worst_of(comparisons: Iterable[Comparison]) -> Comparison:
    """Return the tensor with the largest error relative to its tolerance; NaN is the worst."""

    def badness(one: Comparison) -> tuple[bool, bool, float]:
        return math.isnan(one.relative_l2), not one.passed, one.relative_l2 / one.tolerance

    return max(comparisons, key=badness)


@dataclass
class Proof:
    """All checks of one model's layer.

    Attributes:
        model: Name of the model.
        cell: Name of its cell.
        kernels: Backends besides the reference that were checked.
        checks: One for every backend, precision and shape.
        notes: What was not checked, and why.
        paths: By cell and backend, in words, what computes a packaged baseline.
    """

    model: str
    cell: str
    kernels: list[str] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    paths: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """Return everything, including every tensor of every check."""
        return {
            "status": "ok" if self.passed else "failed",
            "model": self.model,
            "cell": self.cell,
            "kernels": self.kernels,
            "notes": self.notes,
            "summary": self._summary(),
            "checks": [_check_as_json(check) for check in self.checks],
        }

    def _summary(self) -> list[dict[str, Any]]:
        """Return what passed and the worst tensor, for every way of running the layer."""
        found = []
        for part, run in dict.fromkeys((check.part, check.run) for check in self.checks):
            checks = [check for check in self.checks if (check.part, check.run) == (part, run)]
            worst = worst_of(check.worst for check in checks)
            counts = {"checks": len(checks), "passed": sum(check.passed for check in checks)}
            path = self.paths.get((part, run.backend))
            found.append(
                {"part": part}
                | asdict(run)
                | {"path": path, "slow_path": on_slow_path(run.backend)}
                | counts
                | {"worst": _tensor_as_json(worst)}
            )
        return found


def _check_as_json(check: Check) -> dict[str, Any]:
    return (
        {"part": check.part}
        | asdict(check.run)
        | {
            "shape": check.shape,
            "sizes": check.sizes,
            "passed": check.passed,
            "worst": _tensor_as_json(check.worst),
            "tensors": [_tensor_as_json(one) for one in check.comparisons],
        }
    )


def _tensor_as_json(one: Comparison) -> dict[str, Any]:
    return {
        "tensor": one.tensor,
        "relative_l2": _finite(one.relative_l2),
        "cosine": _finite(one.cosine),
        "max_abs": _finite(one.max_abs),
        "divisor_over_norm": _finite(one.widened),
        "tolerance": one.tolerance,
        "reference_relative_l2": None if one.reference is None else _finite(one.reference),
        "from_reference": None if one.apart is None else _finite(one.apart),
        "most_from_reference": _finite(one.most_apart),
        "excused": one.excused,
        "passed": one.passed,
    }


def _finite(value: float) -> float | None:
    """Return None for NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None
