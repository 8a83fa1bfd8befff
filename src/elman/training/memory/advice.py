"""What a person is told whose step does not fit into memory."""

from __future__ import annotations

from elman.base.errors import first_line
from elman.base.units import MEMORY
from elman.config.run_config import RunConfig
from elman.training.memory.estimate import largest_batch


def shortage(error: BaseException) -> str:
    """Return the line of an error about memory; of PyTorch's, what was asked for and is free."""
    return first_line(error).split(" Including non-PyTorch memory")[0]


def memory_advice(
    config: RunConfig, as_run: RunConfig, available: int, estimate: int | None
) -> str:
    """Return what a step needs, what is free, and settings with which it fits.

    Args:
        config: The run's configuration.
        as_run: That of one pass of it: with the chosen backend and the rows of one part, of which
            several ranks, or exact sums, have several.
        available: Free bytes.
        estimate: The bytes that a step needs, if they were estimated; of a step that was tried,
            None.
    """
    train = config.train
    need = f"a step of {train.batch_size} rows of {train.chunk_size} bytes"
    whole = as_run.train.batch_size
    rows: int | None = whole // 2
    if estimate is None:
        need += " does not fit; "
    else:
        need += (
            f" needs about {MEMORY.text(estimate, 1)} and {MEMORY.text(available, 1)} are free; "
        )
        rows = largest_batch(as_run, available)
    remedies = []
    if rows and rows < whole:
        # A divisor, so that accumulation can keep the bytes per step exactly.
        rows = next(r for r in range(rows, 0, -1) if whole % r == 0)
        accum = train.grad_accum * whole // rows
        fewer = f"train.batch_size={train.batch_size // whole * rows}"
        hint = f"(add train.grad_accum={accum} to keep the bytes per step)"
        if estimate is not None:
            return f"{need}{fewer} fits {hint}"
        remedies.append(f"{fewer} {hint}")
    if not train.activation_checkpointing:
        remedies.append("train.activation_checkpointing=true")
    return need + f"try {' or '.join([*remedies, 'a smaller train.chunk_size', 'a smaller model'])}"
