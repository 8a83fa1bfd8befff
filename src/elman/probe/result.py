"""``probe.json``: every field of it, with its definition and unit."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from elman.base.exit_status import RunStatus
from elman.evaluation.fields import Number, Part, Whole, definitions, fact, number

PROBE_VERSION = 2
"""Counts up whenever a definition changes."""


class Estimates(Part):
    """Means over documents, each with the ends of its interval."""

    mean: list[float] = fact("means over documents", default=[])
    low: list[float] = fact("low ends: 95 % of 1,000 resamples of the documents", default=[])
    high: list[float] = fact("high ends", default=[])


class Loss(Part):
    """Loss by position, and the useful length."""

    positions: list[int] = fact(
        "the last position of each bin of carried and reset; the bin before it ends there. The "
        "byte at position p has p bytes of its document before it",
        "bytes",
        [],
    )
    carried: Estimates = number(
        "bits per byte of the bytes at these positions, with the state carried from the start of "
        "the document on",
        "bits",
        Estimates(),
    )
    reset: Estimates = number(
        "bits per byte of the same bytes, with all states zero again after every trained_length "
        "bytes",
        "bits",
        Estimates(),
    )
    saved: Estimates = number(
        "reset minus carried: bits per byte that the state saves because it is carried past "
        "trained_length bytes, on the same bytes",
        "bits",
        Estimates(),
    )
    contexts: list[int] = fact(
        "bytes of context of by_context; the last one is all of the document before the scored "
        "bytes",
        "bytes",
        [],
    )
    by_context: Estimates = number(
        "bits per byte of the last bytes of each document (scored_bytes in all) if the model "
        "starts from zero state c to 2 c - 1 bytes before each of them. The bytes are the same for "
        "every context c, so the noise of the text cancels",
        "bits",
        Estimates(),
    )
    excess: Estimates = number(
        "bits per byte that a context of c bytes costs on the same bytes, compared with all of "
        "the document before them: by_context minus its last value",
        "bits",
        Estimates(),
    )
    scored_bytes: Whole = fact("bytes that every context predicts, over all documents", "bytes")
    whole: Number = number(
        "bits per byte of the scored bytes with the state carried from the start of the document",
        "bits",
    )
    whole_reset: Number = number(
        "bits per byte of the scored bytes with all states zero again after every trained_length "
        "bytes",
        "bits",
    )
    useful_length: Whole = number(
        "the shortest context of contexts over which no longer one saves more than 0.5 % of the "
        "bits per byte (by_context)",
        "bytes",
    )
    useful_length_low: Whole = fact(
        "low end of useful_length: 95 % of 1,000 resamples of the documents", "bytes"
    )
    useful_length_high: Whole = fact("high end of useful_length", "bytes")


class Change(Part):
    """What a change of bytes does to the predictions and the states behind it."""

    kl: Estimates = number(
        "Kullback-Leibler divergence, in bits, from the predictions after the text to those of the "
        "same bytes after the changed text; the mean over the predictions between the previous "
        "distance and this one, at 4 places of each document",
        "bits",
        Estimates(),
    )
    layers: list[Estimates] = number(
        "of each layer at distance 0 and at each distance: the norm of the difference between its "
        "states after the text and after the changed text, over the root mean square of the norm "
        "of its state (all parts but the last inputs of a convolution; of an attention its keys "
        "and values)",
        default=[],
    )
    half_lives: list[Number] = number(
        "of each layer: the distance at which the change of its state (layers) is half of that at "
        "distance 0, with exponential decay between two measured distances; null if it is still "
        "more at the last one. A state that decays by d at every step has log 0.5 / log d",
        "bytes",
        [],
    )
    half_life_of_prediction: Number = number(
        "the distance at which kl is half of its value at distance 1; null if it never is", "bytes"
    )


class Memory(Part):
    """Memory by intervention: bytes are changed, and the change is followed."""

    distances: list[int] = fact("bytes read since the last changed byte", "bytes", [])
    changes: dict[str, Change] = number(
        "by its name, what a change of 16 bytes does. replaced: they are those of another "
        "document. removed: they are left out, so that the text before them is 16 bytes nearer; "
        "16 bytes more are read at the start, so that both have read as many bytes",
        default={},
    )

    @model_validator(mode="before")
    @classmethod
    def _of_version_1(cls, tree: Any) -> Any:
        """Give replaced bytes, the only change that version 1 made, their name."""
        if not isinstance(tree, dict) or "kl" not in tree:
            return tree
        change = {key: value for key, value in tree.items() if key in Change.model_fields}
        rest = {key: value for key, value in tree.items() if key not in change}
        return rest | {"changes": {"replaced": change}}


class RecallKind(Part):
    """What was written, and what its key brings back."""

    pairs: int = fact("different keys, each with its value, that were written one after another")
    copies: int = fact("how often they were written")
    saved: Estimates = number(
        "bits per byte that the model saves on a value of 16 random letters after its key of 8 "
        "random letters, because key and value stood so many bytes before: control minus the bits "
        "there. Text of the document lies between. Of several pairs, a random one comes back",
        "bits",
        Estimates(),
    )
    control: Number = number(
        "bits per byte of the value where another value was written after the key", "bits"
    )


class Recall(Part):
    """Recall by distance."""

    distances: list[int] = fact("bytes of text between what was written and the key", "bytes", [])
    kinds: list[RecallKind] = fact("what was written", default=[])


class StatePart(Part):
    """One part of a layer's state, by its heads, over time; means over documents."""

    heads: int = fact("states side by side; a part without heads is one")
    norm: list[list[float]] = number(
        "at each position and of each head: the root of the sum of squares", default=[]
    )
    saturated: list[list[float]] = number(
        "at each position and of each head: the share of entries of a magnitude over 0.95",
        "share",
        [],
    )
    rank: list[list[float]] | None = number(
        "at each position and of each head that is a matrix: exp of the entropy of its singular "
        "values as shares of their sum (effective rank, Roy and Vetterli 2007), of 4 documents; "
        "null for vectors, and for the keys and values of an attention"
    )
    growth: list[float] = number(
        "of each head: its norm at the end of the document over that at the trained length",
        default=[],
    )


class LayerState(Part):
    """The state of a layer."""

    bytes: Whole = number("bytes of the state of one document", "bytes")
    parts: dict[str, StatePart] = fact("its parts, without the last inputs of a convolution")
    decay: list[list[float]] | None = number(
        "at each position and of each head: the factor by which a step multiplies the old state "
        "before it writes, as the cell computes it; a gate that keeps the state is a decay (of an "
        "LSTM it keeps c, of E23 a slot of the tape). The mean over documents, over the channels "
        "of a head, and over the bytes of the last chunk before the position. Null: the cell has "
        "no decay",
        "factor",
    )


class States(Part):
    """The states themselves."""

    positions: list[int] = fact("bytes read", "bytes", [])
    layers: list[LayerState] = fact("each layer's state", default=[])
    bytes: Whole = number("bytes of the states of all layers for one document", "bytes")
    heads: Whole = fact("heads of all parts of all layers")
    growing: Whole = number("of these, those whose norm more than doubles (growth)")
    dying: Whole = number("of these, those whose norm falls below a half (growth)")


class Ablation(Part):
    """Bits lost without one layer's state."""

    context: Whole = fact("bytes that are read before the intervention", "bytes")
    scored: Whole = fact("bytes of each document after it that are scored", "bytes")
    whole: Number = number("bits per byte of the scored bytes without an intervention", "bits")
    reset: Estimates = number(
        "of each layer: bits per byte that are lost if all of its state, the last inputs of its "
        "convolution included, is zero before every step",
        "bits",
        Estimates(),
    )
    frozen: Estimates = number(
        "of each layer: bits per byte that are lost if every step starts from the state that the "
        "layer had at the intervention",
        "bits",
        Estimates(),
    )
    swapped: Estimates = number(
        "of each layer: bits per byte that are lost if its state is that of another document at "
        "the intervention, and goes on from there",
        "bits",
        Estimates(),
    )


class ProbeResult(Part):
    """Everything in ``probe.json``."""

    status: RunStatus = fact("ok: every part was measured; nan: one was not finite")
    checkpoint: str = fact("the folder of the checkpoint")
    step: Whole = fact("the optimizer step after which it was saved")
    model: str = fact("the model's name")
    cell: str = fact("its cell")
    params: Whole = fact("its parameters")
    backend: str | None = fact("as kernels.backend")
    precision: str = fact("numbers of the products: bf16 or fp32")
    device: str = fact("the device's name")
    trained_length: Whole = fact("bytes of the rows that it was trained on", "bytes")
    length: Whole = fact("bytes that are predicted in each document", "bytes")
    documents: Whole = fact("evenly spaced stretches of the text, without overlap")
    window: Whole = fact(
        "bytes that a position of an attention attends to, itself included, in the "
        "layer with the longest attention; null for models without one",
        "bytes",
    )
    text: str = fact("the text that was read")
    seed: Whole = fact("seed of random keys and values")
    loss: Loss | None = fact("loss by position; null where it was not measured")
    memory: Memory | None = fact("memory by intervention")
    recall: Recall | None = fact("recall by distance")
    state: States | None = fact("the states themselves")
    ablation: Ablation | None = fact("bits lost without one layer's state")
    problems: dict[str, str] = fact("why a part has no numbers, by its name", default={})
    seconds: dict[str, Number] = fact("time of each part", "s", {})
    probe_version: Whole = fact("counts up whenever a definition changes")
    definitions: dict[str, str] = fact("the definition of every number", default={})


DEFINITIONS = dict(definitions(ProbeResult))
"""The definition of every number by its dotted name; each probe writes them beside its numbers."""
