"""Builds what the steps of a run read and change from its configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from elman.config.run_config import RunConfig
from elman.data.batches import open_batches
from elman.data.text import AnyRunData, reset_token
from elman.data.tokenizers.tokenizer import Tokenizer
from elman.distributed.division import divide
from elman.distributed.reduction import reduction_of
from elman.distributed.team import ALONE, Team
from elman.models.build import build_model
from elman.models.language_model import LanguageModel
from elman.training.budget import Budget
from elman.training.cuda_graph import ReplayedPass
from elman.training.long_rows import time_parts
from elman.training.loop import forward_backward
from elman.training.objective import objective_of
from elman.training.optim.optimizers import TrainingOptimizer
from elman.training.training_state import TrainingState


def new_model(
    config: RunConfig, device: torch.device, tokenizer: Tokenizer | None = None
) -> LanguageModel:
    """Return a model with its first weights, which the random generator decides."""
    return build_model(
        config.model,
        backend=config.kernels.backend,
        device=device,
        allow_slow=config.baseline.allow_slow,
        reset_after=reset_token(config.data, tokenizer),
    )


def new_state(
    config: RunConfig,
    data: AnyRunData,
    device: torch.device,
    *,
    graph: bool,
    team: Team = ALONE,
    shard: Callable[[LanguageModel], None] = lambda model: None,
) -> TrainingState:
    """Return what a run starts with, which its seed decides.

    Args:
        config: The run's configuration.
        data: The open data.
        device: Where the model lives.
        graph: Whether the pass is replayed as a CUDA graph.
        team: The ranks that train the model.
        shard: Cuts a whole model into parts, if ``parallel.shard`` says so.
    """
    torch.manual_seed(config.train.seed)
    model = new_model(config, device, data.tokenizer)
    model.activation_checkpointing = config.train.activation_checkpointing
    model.checks_ids = False
    shard(model)
    optimizer = TrainingOptimizer(config.optim, model, config.kernels.backend)
    return state_of(config, data, model, optimizer, device, graph=graph, team=team)


def state_of(
    config: RunConfig,
    data: AnyRunData,
    model: LanguageModel,
    optimizer: TrainingOptimizer,
    device: torch.device,
    *,
    graph: bool,
    team: Team = ALONE,
) -> TrainingState:
    """Return what the steps of a model read and change; arguments as of :func:`new_state`."""
    train = config.train
    division = divide(config.parallel, train.batch_size, team.place)
    if graph and train.overlap == "auto" and config.parallel.shard == "none":
        model.time_parts = time_parts(model, division.rows, train, device)
    objective = objective_of(config.data, train, model, division.rows)
    batches = open_batches(data, train, division.own_rows)
    state = TrainingState(
        train,
        model,
        objective,
        optimizer,
        batches,
        Budget(train, config.model, config.optim.warmup_steps, batches.bytes_per_token),
        division,
        reduction_of(config.parallel, team, division, model.parameters()),
        team,
        device,
    )
    if graph:
        compute, shape = partial(forward_backward, state), objective.batch_shape
        state.replayed = ReplayedPass(train, config.model, model, optimizer, device, compute, shape)
    return state
