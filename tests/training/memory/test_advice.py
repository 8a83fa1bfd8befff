"""What is said when memory runs out: what was asked for, and settings with which a step may fit."""

from __future__ import annotations

import pytest
import torch

from elman.config.compose import compose_config
from elman.training.memory.advice import memory_advice, shortage

OF_TORCH = (
    "CUDA out of memory. Tried to allocate 74.00 MiB. GPU 0 has a total capacity of 79.18 GiB of "
    "which 20.19 MiB is free. Including non-PyTorch memory, this process has 79.15 GiB memory in "
    "use. Of the allocated memory 77.77 GiB is allocated by PyTorch. See documentation for Memory "
    "Management (https://docs.pytorch.org/docs/stable/notes/cuda.html)"
)


def test_of_pytorchs_line_what_a_person_needs_is_left() -> None:
    assert shortage(torch.OutOfMemoryError(OF_TORCH)) == (
        "CUDA out of memory. Tried to allocate 74.00 MiB. GPU 0 has a total capacity of 79.18 GiB "
        "of which 20.19 MiB is free."
    )
    assert shortage(MemoryError()) == "MemoryError"


@pytest.mark.parametrize(
    ("overrides", "advice"),
    [
        (
            ["train.batch_size=36", "train.grad_accum=2"],
            "try train.batch_size=18 (add train.grad_accum=4 to keep the bytes per step) or "
            "train.activation_checkpointing=true or a smaller train.chunk_size or a smaller model",
        ),
        (
            ["train.batch_size=15", "train.activation_checkpointing=true"],
            "try train.batch_size=5 (add train.grad_accum=3 to keep the bytes per step) or "
            "a smaller train.chunk_size or a smaller model",
        ),
        (
            ["train.batch_size=1"],
            "try train.activation_checkpointing=true or a smaller train.chunk_size or a smaller "
            "model",
        ),
    ],
)
def test_a_step_that_was_tried_and_does_not_fit(overrides: list[str], advice: str) -> None:
    config = compose_config([*overrides, "train.chunk_size=512", "data.path=text"])
    rows = config.train.batch_size
    said = memory_advice(config, config, available=0, estimate=None)
    assert said == f"a step of {rows} rows of 512 bytes does not fit; {advice}"


def test_fewer_rows_are_as_many_for_every_rank() -> None:
    config = compose_config(["train.batch_size=12", "data.path=text"])
    of_part = config.train.model_copy(update={"batch_size": 3})  # of four ranks
    as_run = config.model_copy(update={"train": of_part})
    said = memory_advice(config, as_run, available=0, estimate=None)
    assert "train.batch_size=4 (add train.grad_accum=3 " in said
