"""The training loop: one step from its batch to its update, and steps until a budget is used up.

Read :func:`train`, then :func:`take_step`. What goes on beside the steps (records, validation,
checkpoints, the display) is done by listeners, at the moments that :mod:`.moments` names. Ranks
stand behind ``state.reduction`` and ``state.team``, which do nothing on one rank.

Shapes: b rows, t predicted bytes; a batch is [b, t+1] bytes, or [b, 2, t] symbols of a task. k
parts of a batch, which is one part unless ranks share it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from elman.base.exit_status import RunStatus
from elman.evaluation.validation import autocast, to_device
from elman.kernels import stalls
from elman.models.state import State
from elman.training.micro_batches import MicroBatch
from elman.training.moments import Listeners, Moment, Step
from elman.training.objective import Mark, unmarked
from elman.training.rng import seed_part
from elman.training.training_state import TrainingState


def train(state: TrainingState, listeners: Listeners, look: Callable[[], Moment]) -> RunStatus:
    """Take steps until a budget is used up, a number is not finite, or a signal comes.

    Args:
        state: What the steps read and change.
        listeners: What goes on beside the steps.
        look: Returns what all ranks see between two steps: the budget, signals, whether to save.

    Raises:
        UserError: the data can no longer be read, or a kernel gave up, which leaves NaN.
        TeamError: another rank failed.
    """
    listeners.training_begins(look())
    moment, blocked = look(), False
    while moment.goes_on:
        listeners.step_begins()
        step = take_step(state, moment.share)
        listeners.step_ends(step)
        blocked = state.blocked()
        if blocked:
            break
        moment = look()
        if not moment.stopped and listeners.between_steps(moment):
            moment = look()
    # The flag of the last step may not have arrived from the device yet.
    if blocked or state.blocked(drain=True):
        stalls.check()
        status = RunStatus.NAN
    else:
        status = RunStatus.INTERRUPTED if moment.stopped else RunStatus.OK
    listeners.training_ends(status, stopped=moment.stopped)
    return status


def take_step(state: TrainingState, share: float) -> Step:
    """Take one optimizer step: read, forward, backward, clip, update.

    A loss or a gradient that is not finite blocks this update and all later ones on the device.

    Args:
        state: What the step reads and changes.
        share: The used share of the budget, which the learning rate follows.

    Raises:
        UserError: the data can no longer be read; everything is as it was before the step.
    """
    state.team.does(f"computing step {state.step + 1}")
    state.bookmark()
    micro_batches = state.micro_batches.of_step()  # before anything changes
    state.model.begin_step()
    losses_k = gradients(state, micro_batches)
    lr = state.optimizer.set_rate(state.step, share)
    if state.replayed_update is not None:
        loss, norm = state.replayed_update(losses_k)
    else:
        loss, norm = update(state, losses_k)
    state.step += 1
    state.reduction.updated(state.step, state.model.parameters())
    state.finite.note(state.step)
    state.mark("optimiser")
    return Step(state.step, loss, norm, lr)


def gradients(state: TrainingState, micro_batches: Sequence[MicroBatch]) -> Tensor:
    """Compute the mean gradients of all rows; return the mean loss of each part, nats, [k]."""
    division = state.division
    state.reduction.begin()
    losses_k = torch.zeros(division.own_parts, device=state.device)
    for part in range(division.own_parts):
        for n, micro in enumerate(micro_batches):
            if micro.restarted:
                state.recurrent.put(part, None)
            own = slice(part * division.rows, (part + 1) * division.rows)
            batch = to_device(micro.rows[own], state.device)
            state.mark("data")
            if not division.whole:
                seed_part(state.train.seed, state.step, n, division.first_part + part)
            before = state.recurrent.of(part)
            if state.replayed is not None:
                loss, after = state.replayed.run(batch, before, fresh=n == 0)
            else:
                if n == 0:
                    state.optimizer.zero_grad()
                loss, after = forward_backward(state, batch, before, state.mark)
            state.recurrent.put(part, after)
            state.mark("backward")
            losses_k[part] += loss
        state.reduction.add()
    state.reduction.finish()
    return losses_k / state.train.grad_accum


def forward_backward(
    state: TrainingState, batch: Tensor, before: Sequence[State] | None, mark: Mark = unmarked
) -> tuple[Tensor, list[State] | None]:
    """Add the gradients of a micro-batch to the existing ones; return its loss and its states."""
    with autocast(state.device, state.train.precision):
        loss, after = state.objective.loss(batch, before)
    mark("forward")
    (loss / state.train.grad_accum).backward()
    if not state.train.tbptt:
        return loss.detach(), None
    return loss.detach(), [{k: v.detach() for k, v in layer.items()} for layer in after]


def update(state: TrainingState, losses_k: Tensor) -> tuple[Tensor, Tensor]:
    """Clip, and update the weights; return the mean loss and the gradients' norm before that."""
    losses_k = state.reduction.gathered(losses_k)
    limit = state.train.grad_clip or math.inf
    norm = state.optimizer.clip(state.model.parameters(), limit)
    loss, norm, finite = state.reduction.outcome(losses_k, norm)
    state.finite.blocked |= ~finite
    state.optimizer.step(state.finite.blocked)
    return loss, norm
