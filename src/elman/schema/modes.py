"""Sections that a mode's own YAML brings, one per mode that has keys of its own."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from elman.schema.model import VOCAB_SIZE
from elman.schema.section import Count, NonNegative, Section


class EvalConfig(Section):
    """Keys of ``mode=eval``.

    Args:
        checkpoint: Run folder, its ``checkpoints`` folder, or one checkpoint in it.
        path: Bytes to score; null is the run's own held-out tail at its fixed positions.
        max_bytes: Score at most so many bytes of ``path``, evenly spaced; null is all of it.
        batch_size: Rows at a time; null is the run's own.
        carry_state: Score ``path`` as one contiguous text with carried state, not in windows.
        device: As ``train.device``.
    """

    checkpoint: str
    path: str | list[str] | None = None
    max_bytes: Count | None = None
    batch_size: Count | None = None
    carry_state: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"


class GenerateConfig(Section):
    """Keys of ``mode=generate``.

    Args:
        checkpoint: As ``eval.checkpoint``.
        prompt: Text to continue.
        max_bytes: Bytes to generate.
        temperature: 0 always takes the most probable byte.
        top_k: Sample among the k most probable bytes; 0 is off.
        top_p: Sample among the smallest set of bytes with this probability; 1 is off.
        seed: Seed of the sampling.
        device: As ``train.device``.
    """

    checkpoint: str
    prompt: str = ""
    max_bytes: Count = 500
    temperature: NonNegative = 0.8
    top_k: Annotated[int, Field(ge=0, le=VOCAB_SIZE)] = 40
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    device: Literal["auto", "cpu", "cuda"] = "auto"
