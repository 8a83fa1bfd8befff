"""The checks of every operation: they compare tensors with what it will read.

A kernel that is given too small a tensor reads the memory behind it. The host knows shapes, dtypes
and devices, so a check never waits for a GPU and is part of no graph.

Shape legend: b batch, t time, c channels of any kind.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.ops.common.precision import wide_dtype

Shape = tuple[int | None, ...]
"""Lengths of a tensor's axes; None is any length."""


def check(
    what: str,
    tensor: object,
    shape: Shape,
    device: torch.device,
    dtypes: Collection[torch.dtype],
    *,
    batched: bool = False,
) -> None:
    """Compare a tensor with what an operation reads.

    Args:
        what: What it is, for people: ``state S of E88``.
        tensor: The tensor.
        shape: Its shape.
        device: Its device.
        dtypes: The dtypes that it may have.
        batched: Whether its first axis is the input's batch.

    Raises:
        ValueError: it has another shape, dtype or device, or is no tensor.
    """
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{what}: {type(tensor).__name__}, expected a tensor {_lengths(shape)}")
    if tensor.shape != shape and not _fits(tensor.shape, shape):
        given = list(tensor.shape)
        batch = " (batch of the input)" if batched and _fits(given[1:], shape[1:]) else ""
        raise ValueError(f"{what}: shape {given}, expected {_lengths(shape)}{batch}")
    if tensor.dtype not in dtypes:
        expected = " or ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        given_dtype = str(tensor.dtype).removeprefix("torch.")
        raise ValueError(f"{what}: dtype {given_dtype}, expected {expected}")
    if tensor.device != device:
        raise ValueError(f"{what}: on {tensor.device}, expected on {device} (device of the input)")


def _fits(given: Sequence[int], shape: Shape) -> bool:
    return len(given) == len(shape) and all(
        length in (one, None) for one, length in zip(given, shape, strict=True)
    )


def _lengths(shape: Shape) -> str:
    return f"[{', '.join('any' if length is None else str(length) for length in shape)}]"


FLOATING = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
"""Dtypes of sequences and parameters, which an operation casts to its own."""
WIDE = {dtype: frozenset({wide_dtype(dtype)}) for dtype in FLOATING}
"""By a sequence's dtype: those of the states before and after it."""


def check_sequences(of: str, sources_btc: Sequence[Tensor], channels: Sequence[int] = ()) -> None:
    """Compare sequences with each other and with what is read of them.

    Args:
        of: The operation, for people.
        sources_btc: The sequences, at least one.
        channels: How many channels the first of them have at least.

    Raises:
        ValueError: they are no sequences of one batch, length and device, or too narrow.
    """
    if len(sources_btc) < len(channels):
        raise ValueError(f"{of}: {len(sources_btc)} sources, expected {len(channels)}")
    first = sources_btc[0]
    length, device = first.shape[:2], first.device
    for number, source in enumerate(sources_btc):
        shape = source.shape
        least = channels[number] if number < len(channels) else 0
        if len(shape) < 3 or shape[:2] != length or shape[2] < least:
            wanted = ", ".join([*map(str, length), f"at least {least}"])
            raise ValueError(f"source {number} of {of}: shape {list(shape)}, expected [{wanted}]")
        # The words of an error are put together only when there is one.
        if source.dtype not in FLOATING or source.device != device:
            check(f"source {number} of {of}", source, shape, device, FLOATING)


def check_parameters(
    of: str,
    given: Mapping[str, Tensor],
    shapes: Mapping[str, Shape],
    device: torch.device,
) -> None:
    """Compare parameters with what is read: these names, shapes and device.

    Args:
        of: The operation, for people.
        given: Parameters by name.
        shapes: Their shapes.
        device: Their device.

    Raises:
        UserError: they have other names. The author of the cell can mend it.
        ValueError: they have other shapes, dtypes or devices.
    """
    if given.keys() != shapes.keys():
        raise UserError(
            f"parameters of {of}: given {_names(given)}, expected {_names(shapes)}; "
            "mend the layer or the cell's declaration"
        )
    for name, shape in shapes.items():
        one = given[name]
        if one.shape != shape or one.dtype not in FLOATING or one.device != device:
            check(f"parameter {name} of {of}", one, shape, device, FLOATING)


def _names(named: Mapping[str, object]) -> str:
    return ", ".join(named) or "none"


def check_state(part: str, of: str, state: Tensor, shape: Shape, like: Tensor) -> None:
    """Compare a part of a state with the sequence that it stands before.

    Args:
        part: What it is, for people: ``state``.
        of: The operation.
        state: The part.
        shape: Its shape; the first axis is the batch.
        like: The sequence, before it was widened.

    Raises:
        ValueError: it has another shape or device, or is not in fp32 or wider.
    """
    dtypes = WIDE[like.dtype]
    if state.shape != shape or state.dtype not in dtypes or state.device != like.device:
        check(f"{part} of {of}", state, shape, like.device, dtypes, batched=True)


def check_resets(of: str, resets_bt: Tensor | None, like: Tensor) -> None:
    """Compare resets with the sequence whose steps they stand before.

    Args:
        of: The operation, for people.
        resets_bt: Whether a row's state is zero before a step, bool; or None.
        like: The sequence [B, T, channels].

    Raises:
        ValueError: they have another shape, dtype or device.
    """
    if resets_bt is not None:
        check(f"resets of {of}", resets_bt, tuple(like.shape[:2]), like.device, (torch.bool,))


def check_kernel_tensors(
    of: str, sources_btc: Sequence[Tensor], parameters: Sequence[Tensor]
) -> None:
    """Compare the tensors of an operator, which its kernel reads without a cast.

    Args:
        of: The operation, for people.
        sources_btc: Its sequences.
        parameters: Everything else.

    Raises:
        ValueError: the sequences differ in dtype, a parameter is not in fp32 or wider, or there
            are no rows or no steps.
    """
    first = sources_btc[0]
    if is_empty(first):
        raise ValueError(f"source 0 of {of}: shape {list(first.shape)}, expected rows and steps")
    for source in sources_btc:
        check(f"sources of {of}", source, source.shape, first.device, (first.dtype,))
    for parameter in parameters:
        check_state("parameters", of, parameter, parameter.shape, first)


def is_empty(source_btc: Tensor) -> bool:
    """Return whether a sequence has no rows or no steps, so that there is nothing to compute."""
    return source_btc.shape[0] == 0 or source_btc.shape[1] == 0


def empty_results(
    out: Sequence[int],
    dtype: torch.dtype,
    states: Sequence[Tensor],
    read: Iterable[Tensor | None],
) -> tuple[Tensor, list[Tensor]]:
    """Return the results of an operation on a sequence without rows or steps.

    Every tensor that is read gets a gradient of 0. A gradient of a last state goes to the first.

    Args:
        out: Shape of the output, which has no numbers.
        dtype: Its dtype.
        states: States before the first step.
        read: Every other tensor that the operation reads.

    Returns:
        The output and the states after the last step, which are those before the first.
    """
    # Sums over no numbers, whose gradients are zeros. Negated, because x + -0.0 is x to the bit.
    there = [one for one in read if one is not None]
    sums = [one[:0].sum(dtype=torch.float64).to(there[0].device) for one in there]
    nothing = -torch.stack(sums).sum()
    made = nothing.new_zeros(tuple(out), dtype=dtype) + nothing.to(dtype)
    return made, [state + nothing.to(state.dtype) for state in states]
