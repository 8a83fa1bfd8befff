"""What an optimizer step needs before it is taken: kernels, a recorded pass, memory that is enough.

Nothing here changes a weight, the place in the data or a random generator.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from elman.models.inputs import ids_dtype
from elman.models.state import State
from elman.training.loop import forward_backward, update
from elman.training.rng import rng_state, set_rng_state
from elman.training.training_state import TrainingState


def prepare_step(state: TrainingState) -> float:
    """Run forward and backward passes that change nothing but build kernels and a graph.

    They also check that the step fits into memory before the clock starts.

    Returns:
        The seconds of a pass, without those of torch's compiler.

    Raises:
        UserError: the pass cannot be replayed as a graph.
    """
    rng = rng_state(state.device)
    replayed = state.replayed
    try:
        if replayed is not None:
            seconds = replayed.prepare()
        else:
            seconds = prepare_pass(state, state.recurrent.of(0))
        state.reduction.prepare()
        state.optimizer.prepare(state.device)
        alone = state.team.place.alone and state.division.whole
        if replayed is not None and state.optimizer.replayable and alone:
            made = replayed.record_update(partial(update, state), state.finite.blocked)
            state.replayed_update = made
        state.synchronize()
    finally:
        set_rng_state(rng, state.device)
    state.released = False
    return seconds


def release_step(state: TrainingState) -> None:
    """Free what only the next step needs: a recorded pass, gradients, the allocator's cache."""
    state.synchronize()
    if state.replayed is not None:
        state.released = True
        state.replayed.release()
    state.replayed_update = None
    state.optimizer.zero_grad()
    if state.device.type == "cuda":
        torch.cuda.empty_cache()


def prepare_pass(state: TrainingState, recurrent: Sequence[State] | None) -> float:
    """Compute a pass that Python calls, and drop its gradients; return its seconds.

    Args:
        state: What a step reads.
        recurrent: The states that the first pass will get.
    """
    if state.train.compile:
        # Each form of the pass is compiled when it is first computed: that of rows which start, of
        # rows which go on, and where a state grows the form for any length.
        _, (_, carried) = _timed(state, None)
        for _ in range(2 if carried is not None else 0):
            _, (_, carried) = _timed(state, carried)
        recurrent = recurrent if carried is None else carried
    return _timed(state, recurrent)[0]


def _timed(
    state: TrainingState, recurrent: Sequence[State] | None
) -> tuple[float, tuple[Tensor, list[State] | None]]:
    """Compute a pass that changes nothing; return its seconds and its results."""
    dtype = ids_dtype(len(state.model.embedding))
    batch = torch.zeros(state.objective.batch_shape, dtype=dtype, device=state.device)
    began = time.perf_counter()
    result = forward_backward(state, batch, recurrent)
    state.synchronize()
    seconds = time.perf_counter() - began
    state.optimizer.zero_grad()
    return seconds, result
