"""Builds a model from its configuration."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from elman.base.crash import error_line_with_traceback
from elman.base.errors import UserError
from elman.models.backends import resolve_backend
from elman.models.cells import registry
from elman.models.cells.common.mixer import Mixer
from elman.models.cells.declaration import Cell
from elman.models.language_model import LanguageModel
from elman.models.mixed import requested_backends, shared_backend
from elman.sections.model import ModelConfig


def build_model(
    config: ModelConfig,
    *,
    backend: str = "auto",
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    allow_slow: bool = False,
    reset_after: int | None = None,
) -> LanguageModel:
    """Build the language model of a configuration, with weights from torch's global generator.

    Args:
        config: Group ``model``.
        backend: As ``kernels.backend``.
        device: Device of the weights; ``meta`` allocates none.
        dtype: Dtype of the weights; None means torch's default.
        allow_slow: As ``baseline.allow_slow``.
        reset_after: As ``DataConfig.reset_after``.

    Raises:
        UserError: the cell has no such backend, its package cannot run on ``device``, or the
            parameter count is not ``config.expected_params``.
    """
    parts, order = config.parts(), config.order()
    new = [
        _layer_maker(part, requested, device, allow_slow=allow_slow)
        for part, requested in zip(parts, requested_backends(config, backend), strict=True)
    ]
    layers = [new[kind](device=device, dtype=dtype) for kind in order]
    for index, one in enumerate(layers):
        if isinstance(one, Mixer):
            one.place(index, layers)
    model = LanguageModel(
        config.dim,
        layers,
        config.wrapper,
        config.vocab_size,
        mlp_widths=[parts[kind].mlp_width for kind in order],
        backend=shared_backend(backend),
        reset_after=reset_after,
        device=device,
        dtype=dtype,
    )
    check_params(config, model.num_params())
    return model


def _layer_maker(
    part: ModelConfig, backend: str, device: torch.device | str, *, allow_slow: bool
) -> Callable[..., nn.Module]:
    """Return what makes a layer of a model with one cell."""
    cell = registry.cell(part.cell)
    cell.check_mlp(part.mlp_ratio)
    if cell.package is not None and torch.device(device).type == "cuda":
        backend = resolve_backend(cell, backend, device, allow_slow=allow_slow)
    # A composed configuration has every option, but a layer refuses options that nothing reads.
    changed = {k: v for k, v in part.options.items() if v != cell.options[k].default}
    return partial(layer_class(cell), part.dim, **changed, backend=backend)


def layer_class(cell: Cell) -> type[nn.Module]:
    """Import and return the layer of a cell.

    Raises:
        UserError: the declared class cannot be imported (for a cell of another package).
    """
    module_name, _, class_name = cell.layer.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except UserError:
        raise
    except Exception as error:  # it is another package's code
        raise UserError(
            f"cell {cell.name}: its layer {cell.layer} cannot be imported: "
            f"{error_line_with_traceback(error)}; fix or reinstall the package that declares it"
        ) from error
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise UserError(
            f"cell {cell.name}: its layer {cell.layer} is not an nn.Module class; "
            "fix the package that declares it"
        )
    return found


def check_params(config: ModelConfig, params: int) -> None:
    """Raise UserError if the model's YAML expects another count than ``params``."""
    expected = config.expected_params
    if expected is not None and params != expected:
        raise UserError(
            f"model.expected_params={expected}: {config.name} has {params} parameters; "
            f"use model.expected_params={params} or model.expected_params=null"
        )
