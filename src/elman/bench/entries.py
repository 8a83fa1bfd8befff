"""Chooses a benchmark's models and backends. Without torch, so a wrong name fails at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from elman.base.errors import UserError
from elman.config.compose import compose_config
from elman.config.run_config import RunConfig
from elman.models.backends import AUTO
from elman.models.mixed import paths, resolved_backends, slow_notes
from elman.sections.model import ModelConfig

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Entry:
    """One model on one backend.

    Args:
        model: Group ``model``.
        backend: The backend's name, never ``auto``; of a mixed stack the names of its parts.
    """

    model: ModelConfig
    backend: str

    def of_run(self, config: RunConfig) -> RunConfig:
        """Return a configuration with this model on this backend."""
        kernels = config.kernels.model_copy(update={"backend": self.backend})
        return config.model_copy(update={"model": self.model, "kernels": kernels})

    @property
    def path(self) -> str | None:
        """Words for what computes a packaged baseline; None for other cells."""
        return paths(self.model, self.backend)


def benched_models(config: RunConfig, search: Sequence[str] = ()) -> list[ModelConfig]:
    """Return ``model`` and the models of ``bench.models``, in this order.

    Args:
        config: The benchmark's configuration.
        search: Overrides for finding the user's own YAML files.

    Raises:
        UserError: a name is unknown, or a model cannot have the requested size.
    """
    assert config.bench is not None
    models = [config.model]
    for name in config.bench.models:
        try:
            other = compose_config([f"model={name}", *_same_size(config), *search]).model
        except UserError as error:
            raise UserError(f"bench.models: {error}") from None
        models.append(other.with_vocabulary(config.model.vocab_size))
    return models


def _same_size(config: RunConfig) -> list[str]:
    assert config.bench is not None
    if not config.bench.same_size:
        return []
    model = config.model
    sizes = [f"model.dim={model.dim}", f"model.depth={model.depth}"]
    return [*sizes, f"model.allow_unaligned={str(model.allow_unaligned).lower()}"]


def entries(
    models: Sequence[ModelConfig],
    backends: Sequence[str],
    device: torch.device | str,
    *,
    allow_slow: bool = False,
) -> tuple[list[Entry], list[str]]:
    """Return every model on every backend that it has here, and notes on what was left out.

    Args:
        models: The models.
        backends: As ``bench.backends``.
        device: Where they run.
        allow_slow: As ``baseline.allow_slow``: models that training refuses on a GPU are left out.
    """
    found: list[Entry] = []
    notes: list[str] = []
    for model in models:
        for requested in backends:
            try:
                backend = resolved_backends(model, requested, device, allow_slow=allow_slow)
            except UserError as error:
                notes.append(f"{model.name} left out: {error}")
                continue
            slow = slow_notes(model, requested, device, backend) if requested == AUTO else []
            notes += [one for one in slow if one not in notes]
            entry = Entry(model, backend)
            # auto may resolve to a named backend, and a model may be named twice.
            if entry not in found:
                found.append(entry)
    return found, notes
