"""What every check on a GPU needs: comparisons, NaN in new tensors, streams, graphs, times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

Key = TypeVar("Key", bound=Hashable)
Results = TypeVar("Results", bound="Sequence[Tensor] | Mapping[str, Tensor]")
Value = TypeVar("Value")
NOT_A_NUMBER = 9.0
"""The error that stands for a NaN: above every tolerance."""


def device_name(device: str) -> str:
    """Return what people call the device."""
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


# ---- comparisons


def distance(result: Tensor, exact: Tensor, size: Tensor | None = None) -> float:
    """Return the L2 error relative to a size, else to the norm of what is exact; a NaN counts as 9.

    Args:
        result: What is judged, of any dtype.
        exact: What it should be, in fp64.
        size: What the error is divided by; None: the norm of ``exact``.
    """
    exact = exact.double()
    size = exact.norm() if size is None else size
    error = float((result.double() - exact).norm() / (size + 1e-30))
    return error if error == error else NOT_A_NUMBER


def furthest(results: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Return the largest relative L2 error of tensors."""
    return max(distance(one, right) for one, right in zip(results, exact, strict=True))


def cosine(result: Tensor, exact: Tensor) -> float:
    """Return the cosine of the angle between two tensors."""
    pair = (result.double().flatten(), exact.double().flatten())
    return float(torch.nn.functional.cosine_similarity(*pair, dim=0))


def equal(results: Results, others: Results) -> bool:
    """Return whether tensors agree to the bit."""
    return all(map(torch.equal, _tensors(results), _tensors(others, like=results)))


def finite(results: Results) -> bool:
    """Return whether every number is finite."""
    return all(bool(tensor.isfinite().all()) for tensor in _tensors(results))


def _tensors(
    results: Sequence[Tensor] | Mapping[str, Tensor],
    like: Sequence[Tensor] | Mapping[str, Tensor] | None = None,
) -> list[Tensor]:
    """Return tensors in order: those of a mapping by the names of another one."""
    names = results if like is None else like
    assert len(names) == len(results), "not the same tensors"
    if isinstance(results, Mapping):
        return [results[str(name)] for name in names]
    return list(results)


@contextmanager
def poisoned() -> Iterator[None]:
    """Let every new tensor be NaN until something is written to it."""
    places = ((Tensor, "new_empty"), (torch, "empty"), (torch, "empty_like"))
    before = [getattr(owner, name) for owner, name in places]
    try:
        for (owner, name), make in zip(places, before, strict=True):
            setattr(owner, name, lambda *a, make=make, **k: filled(make(*a, **k)))
        yield
    finally:
        for (owner, name), make in zip(places, before, strict=True):
            setattr(owner, name, make)


def filled(tensor: Tensor) -> Tensor:
    """Return a tensor full of NaN."""
    return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor


# ---- streams and graphs


def on_side_stream(call: Callable[[], Value]) -> Value:
    """Return what a call computes on a stream of its own."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        results = call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    return results


def on_late_stream(
    call: Callable[[dict[str, Tensor]], Results], leaves: Mapping[str, Tensor]
) -> Results:
    """Return what a call computes on a stream that gets its inputs late."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    late = {name: torch.full_like(leaf, torch.nan) for name, leaf in leaves.items()}
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        with torch.no_grad():
            for name, leaf in leaves.items():
                late[name].copy_(leaf)
        results = call({name: leaf.requires_grad_() for name, leaf in late.items()})
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    return results


def recorded(
    call: Callable[[], Any],
    *,
    calls: int = 1,
    warmup: int = 1,
    stream: torch.cuda.Stream | None = None,
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Return calls as a CUDA graph, and the last results; it keeps alive what the call reads.

    Args:
        call: What is recorded.
        calls: How often it stands in the graph.
        warmup: How often it runs before.
        stream: Where both happen; None: on a stream of their own each.
    """
    side = stream or torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warmup):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(calls):
            results = call()
    graph.call = call  # type: ignore[attr-defined]
    return graph, results


def replayed(call: Callable[[], Results], *, wipe: bool = True) -> Results:
    """Return what a recorded call computes when it is replayed twice.

    Args:
        call: What is recorded.
        wipe: Whether the results are NaN before each replay: not where one may be an input.
    """
    graph, results = recorded(call)
    for _ in range(2):
        for tensor in _tensors(results) if wipe else ():
            filled(tensor)
        graph.replay()
    torch.cuda.synchronize()
    same: Results = results
    return same


def replayed_late(
    call: Callable[[dict[str, Tensor]], dict[str, Tensor]], leaves: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return what a call that was recorded on zeros computes when it is replayed on the numbers."""
    static = {name: torch.zeros_like(leaf).requires_grad_() for name, leaf in leaves.items()}
    graph, results = recorded(lambda: call(static))
    with torch.no_grad():
        for name, leaf in leaves.items():
            static[name].copy_(leaf)
    graph.replay()
    torch.cuda.synchronize()
    return {name: tensor.clone() for name, tensor in results.items()}


# ---- times


def seconds(call: Callable[[], Any], repeats: int = 1) -> float:
    """Return the time of a call by events on the device: of several calls, over their number."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / repeats


def interleaved(
    calls: Mapping[Key, Callable[[], Any]], rounds: int, *, warmup: int = 0, repeats: int = 1
) -> dict[Key, list[float]]:
    """Return the seconds of every call in every round; in a round all are timed in turn.

    Args:
        calls: What is timed, by name.
        rounds: How many times of a call are returned.
        warmup: Rounds before those, whose times are forgotten.
        repeats: How often a call runs in a round; its time is over their number.
    """
    times: dict[Key, list[float]] = {key: [] for key in calls}
    for number in range(warmup + rounds):
        for key, call in calls.items():
            took = seconds(call, repeats)
            if number >= warmup:
                times[key].append(took)
    return times


def in_turn(graphs: Mapping[Key, tuple[torch.cuda.CUDAGraph, Any]], steps: int) -> dict[Key, float]:
    """Return the median microseconds a step of graphs, all replayed in turn in seven rounds."""
    calls = {key: graph.replay for key, (graph, _) in graphs.items()}
    times = interleaved(calls, 7, warmup=2)
    return {key: spread(rounds, steps)["us_a_step"] for key, rounds in times.items()}


def spread(times: Sequence[float], steps: int) -> dict[str, float]:
    """Return microseconds a step: the median of rounds of so many steps, the least and the most."""
    us = [round(one * 1e6 / steps, 3) for one in times]
    return {"us_a_step": statistics.median(us), "low": min(us), "high": max(us)}


def median_us(call: Callable[[], Any], repeats: int = 20, warmup: int = 3) -> float:
    """Return the median time of a short call in microseconds, by events on the device.

    Calls follow each other without a pause, so that what the host needs to start one is hidden.
    """
    for _ in range(warmup):
        call()
    torch.cuda.synchronize()
    pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for begin, end in pairs:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return 1e3 * float(statistics.median(begin.elapsed_time(end) for begin, end in pairs))


@cache
def copy_bytes_per_us() -> float:
    """Return the bandwidth of a copy: what memory floors are made of."""
    x = torch.ones(2**28, device="cuda")
    y = torch.empty_like(x)
    # By a kernel: a graph gives a plain copy to the copy engines, which are slower.
    return 2 * x.numel() * x.element_size() / median_us(lambda: torch.neg(x, out=y))
