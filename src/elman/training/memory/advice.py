"""What a person is told whose step does not fit into memory."""

from __future__ import annotations

from elman.config.run_config import RunConfig
from elman.training.memory.estimate import largest_batch


def memory_advice(
    config: RunConfig, as_run: RunConfig, available: int, estimate: int | None
) -> str:
    """Return what a step needs, what is free, and settings with which it fits.

    Args:
        config: The run's configuration.
        as_run: That of one pass of it: with the chosen backend and the rows of one part.
        available: Free bytes.
        estimate: The bytes that a step needs, if they were estimated.
    """
    train = config.train
    rows = largest_batch(as_run, available)
    need = f"a step of {train.batch_size} rows of {train.chunk_size} bytes"
    if estimate is not None:
        need += f" needs about {estimate / 1e9:.1f} GB"
    else:
        need += " does not fit"
    need += f" and {available / 1e9:.1f} GB are free; "
    if rows is not None and rows < train.batch_size:
        # A divisor, so that accumulation can keep the bytes per step exactly.
        rows = next(r for r in range(rows, 0, -1) if train.batch_size % r == 0)
        accum = train.grad_accum * train.batch_size // rows
        return need + (
            f"train.batch_size={rows} fits "
            f"(add train.grad_accum={accum} to keep the bytes per step)"
        )
    remedies = ["a smaller train.chunk_size", "a smaller model"]
    if not train.activation_checkpointing:
        remedies.insert(0, "train.activation_checkpointing=true")
    return need + f"try {' or '.join(remedies)}"
