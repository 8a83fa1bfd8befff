"""Builds the layers and models that a benchmark times.

Shape legend: b batch, t time, d model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import torch

from elman.base.errors import UserError
from elman.bench.entries import Entry
from elman.bench.peers import Sizes, build_peer
from elman.bench.subjects import LayerSubject, StepSubject, Subject
from elman.config.run_config import RunConfig
from elman.data.text import AnyRunData, open_data
from elman.models.build import layer_class
from elman.models.cells import registry
from elman.models.mixed import requested_backends
from elman.sections.measuring import BenchConfig
from elman.sections.training import TrainConfig

_SEED = 42


def layer_subjects(
    config: RunConfig, chosen: Sequence[Entry], device: torch.device
) -> tuple[list[LayerSubject], list[str]]:
    """Return one layer of each kind in every entry, and of every installed peer."""
    settings = config.bench
    assert settings is not None
    torch.manual_seed(_SEED)
    shape = (settings.batch_size, settings.chunk_size)
    subjects: list[LayerSubject] = []
    for entry in chosen:
        for part in _parts(entry):
            layer = _layer(part, device)
            x_btd = torch.randn(*shape, entry.model.dim, device=device)
            name = f"{part.model.name}, {part.model.cell}" if entry.model.mixed else part.model.name
            subject = LayerSubject(name, layer, x_btd, part.backend, settings.precision)
            subject.path = part.path
            subjects.append(subject)
    notes = []
    x_btd = torch.randn(*shape, config.model.dim, device=device)
    for peer_name in settings.peers:
        try:
            peer = build_peer(peer_name, _peer_sizes(config), device)
        except UserError as error:
            notes.append(f"left out: {error}")
            continue
        subjects.append(
            LayerSubject(peer_name, peer.module, x_btd, peer.path, settings.precision, peer.level)
        )
    return subjects, notes


def _parts(entry: Entry) -> list[Entry]:
    backends = requested_backends(entry.model, entry.backend)
    return [Entry(*pair) for pair in zip(entry.model.parts(), backends, strict=True)]


def _layer(entry: Entry, device: torch.device) -> torch.nn.Module:
    cell = registry.cell(entry.model.cell)
    changed = {k: v for k, v in entry.model.options.items() if v != cell.options[k].default}
    return layer_class(cell)(entry.model.dim, **changed, backend=entry.backend, device=device)


def _peer_sizes(config: RunConfig) -> Sizes:
    """Return the model's width, and its heads if each head has a state of its own."""
    settings, model = config.bench, config.model
    assert settings is not None
    heads, width = model.options.get("n_heads"), model.options.get("n_state")
    if not (type(heads) is int and type(width) is int):
        heads, width = max(1, model.dim // 64), 64
    return Sizes(model.dim, heads, width, settings.batch_size, settings.chunk_size)


def step_training(settings: BenchConfig) -> TrainConfig:
    """Return the settings of the training whose step is timed."""
    return TrainConfig(
        batch_size=settings.batch_size,
        chunk_size=settings.chunk_size,
        seed=_SEED,
        precision=settings.precision,
        graph=settings.graph,
    )


def step_subjects(
    config: RunConfig, chosen: Sequence[Entry], device: torch.device, stack: ExitStack
) -> tuple[list[Subject], list[str]]:
    """Return the training step of every entry's model; ``stack`` closes their data readers."""
    settings = config.bench
    assert settings is not None
    train = step_training(settings)
    opened: AnyRunData = open_data(config.data, settings.chunk_size, lambda line: None)
    stack.callback(opened.close)
    subjects: list[Subject] = []
    for entry in chosen:
        own = entry.of_run(config).model_copy(update={"train": train})
        torch.manual_seed(_SEED)
        try:
            subject = StepSubject(own, opened, entry.backend, device)
        except UserError as error:  # which names the setting of a training
            raise UserError(str(error).replace("train.graph", "bench.graph")) from None
        stack.callback(subject.close)
        subject.path = entry.path
        subjects.append(subject)
    left_out = [f"{name}: only as a layer, not as a step" for name in settings.peers]
    return subjects, left_out if settings.level == "step" else []
