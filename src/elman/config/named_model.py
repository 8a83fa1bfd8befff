"""Build the model that a name of ``conf/model`` stands for, for ``elman.build``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elman.base.quoting import as_override
from elman.config.compose import compose_config

if TYPE_CHECKING:  # importing torch takes a second
    import torch

    from elman.models.language_model import LanguageModel
    from elman.sections.model import Value


def build(
    name: str,
    device: str | torch.device = "cpu",
    backend: str = "auto",
    allow_slow: bool = False,
    **settings: Value,
) -> LanguageModel:
    """Return a new, untrained model in training mode.

    Its weights come from torch's global generator: call ``torch.manual_seed`` before.

    Args:
        name: A model, as in ``elman model=<name>``; ``elman mode=models`` lists them.
        device: Where the model goes; ``meta`` allocates no weights.
        backend: As ``kernels.backend``.
        allow_slow: As ``baseline.allow_slow``.
        settings: Keys of the group ``model``, as in ``build("e1", dim=256, depth=4)``.

    Raises:
        UserError: there is no such model or setting, a value is impossible, or a package that the
            model needs on a GPU is missing.
    """
    from elman.models.build import build_model

    changed = [f"model.{key}={as_override(value)}" for key, value in settings.items()]
    config = compose_config([f"model={as_override(name)}", *changed])
    return build_model(config.model, backend=backend, device=device, allow_slow=allow_slow)
