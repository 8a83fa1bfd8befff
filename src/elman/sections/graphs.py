"""Which settings allow the training pass to be replayed as a CUDA graph."""

from __future__ import annotations

from elman.sections.model import ModelConfig
from elman.sections.training import TrainConfig


def graph_conflict(train: TrainConfig, model: ModelConfig) -> str | None:
    """Return why no pass with these settings can be replayed, and the way out; None if it can.

    Args:
        train: Group ``train``, of which ``graph`` itself is ignored.
        model: Group ``model``.
    """
    if train.device == "cpu":
        return "a CUDA graph needs a GPU, not train.device=cpu; use train.graph=auto"
    if train.compile:
        return "cannot be combined with train.compile=true; drop one of them"
    if train.activation_checkpointing:
        # It stores and restores generator states in the pass; CUDA forbids that in a graph.
        return "cannot be combined with train.activation_checkpointing=true; drop one of them"
    for part in model.parts():
        context = part.options.get("context")
        if train.tbptt and type(context) is int and context > train.chunk_size + 1:
            key, place = "model.context=", ""
            if model.of_entry(part, "context"):
                key, place = "context:", f" for {part.cell} in model.layers"
            return (
                f"with train.tbptt=true and {key}{context}{place} the carried states grow from "
                f"chunk to chunk; use {key}{train.chunk_size + 1} or less, or train.graph=auto"
            )
    return None
