"""Sections in the YAML of a mode, for each mode that has keys of its own; solve.py has one more."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from elman.base.errors import UserError
from elman.sections.model import ModelConfig
from elman.sections.section import Count, NonNegative, Section, Switch, rounded
from elman.sections.training import DataFormat, refuse_unread


class EvalConfig(Section):
    """Keys of ``mode=eval``.

    Args:
        checkpoint: Run folder, its ``checkpoints`` folder, or one checkpoint in it.
        path: Bytes to score; null is the run's own held-out tail at its fixed positions.
        format: As ``data.format``, of ``path``.
        field: As ``data.field``, of ``path``.
        max_bytes: Score at most so many bytes of ``path``, evenly spaced; null is all of it.
        batch_size: Rows at a time; null is the run's own.
        lengths: Of a run that learned a task: test these lengths; null is the run's own.
        carry_state: Score ``path`` as one contiguous text with carried state, not in windows.
        document_window: Score each document of ``path`` by itself in windows of so many tokens, as
            lm-eval's ``loglikelihood_rolling`` does with that ``max_length``.
        device: As ``train.device``.
    """

    checkpoint: str
    path: str | list[str] | None = None
    format: DataFormat = "auto"
    field: str = "text"
    max_bytes: Count | None = None
    batch_size: Count | None = None
    lengths: Annotated[list[Count], Field(min_length=1)] | None = None
    carry_state: bool = False
    document_window: Count | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"

    @model_validator(mode="after")
    def _each_is_read(self) -> Self:
        refuse_unread("eval", self.path, self.format, self.field)
        for key in ("max_bytes", "carry_state"):
            if self.document_window is not None and getattr(self, key) not in (None, False):
                raise UserError(f"eval.{key}: not read with eval.document_window; drop one of them")
        return self


class GenerateConfig(Section):
    """Keys of ``mode=generate``.

    Args:
        checkpoint: As ``eval.checkpoint``.
        prompt: Text to continue, or a list of texts, which are continued together.
        samples: Continuations of each prompt, each with random draws of its own.
        max_bytes: Bytes to generate after each; the last token is written whole.
        temperature: 0 always takes the most probable byte.
        top_k: Sample among the k most probable tokens; 0 is off.
        top_p: Sample among the smallest set of tokens with this probability; 1 is off.
        seed: Seed of the sampling; continuation i draws with ``seed + i``.
        state: File from ``save_state``; its texts continue, with the prompt after them.
        save_state: File to write the state after the last byte to.
        graph: ``auto`` replays each step as a CUDA graph on a GPU where the state keeps its shape.
        fused: ``true`` takes whole steps in one kernel, ``auto`` does so where that was measured to
            be faster.
        precision: As ``train.precision``; ``auto`` is the precision of the training run.
        device: As ``train.device``.
    """

    checkpoint: str
    prompt: str | list[str] = ""
    samples: Count = 1
    max_bytes: Count = 500
    temperature: NonNegative = 0.8
    top_k: Annotated[int, rounded, Field(ge=0)] = 40
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, rounded, Field(ge=0, lt=2**32)] = 42
    state: str | None = None
    save_state: str | None = None
    graph: Switch = "auto"
    fused: Switch = "auto"
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"


class ExportConfig(Section):
    """Keys of ``mode=export``.

    Args:
        checkpoint: As ``eval.checkpoint``.
        to: The folder that is made.
    """

    checkpoint: str
    to: str


class ModelsConfig(Section):
    """Keys of ``mode=models``.

    Args:
        filter: List only the models that have this text in their name, cell, source or folder.
        sizes: List the sizes of published comparisons, too.
    """

    filter: str | None = None
    sizes: bool = False

    def refuse(self, model: ModelConfig, named: frozenset[str]) -> None:
        """Raise UserError on a typed key that nothing would read."""
        explained = "model" in named
        if explained and "models.filter" in named:
            raise UserError(
                "models.filter: not read together with model=..., which explains one model; drop it"
            )
        of_a_model = {
            key for key in named if key.startswith("model.") or key.split(".")[0] == "data"
        }
        if unread := [] if explained else sorted(of_a_model):
            raise UserError(
                f"{unread[0]}: mode=models reads it only for a named model; add model=<name>"
            )
