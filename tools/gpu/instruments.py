"""What every check on a GPU needs: a report, comparisons, NaN in new tensors, graphs, times."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def write(path: Path, line: dict[str, Any]) -> None:
    """Print a result and append it to the file."""
    text = json.dumps(line)
    print(text, flush=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(text + "\n")


def device_name(device: str) -> str:
    """Return what people call the device."""
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"


def distance(found: Tensor, exact: Tensor, size: Tensor) -> float:
    """Return the L2 error relative to a size; a NaN counts as 9."""
    error = float((found.double() - exact).norm() / (size + 1e-30))
    return error if error == error else 9.0


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


def equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Return whether tensors agree to the bit."""
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def recorded(call: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Return a call as a CUDA graph, and its results; the graph keeps alive what the call reads."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = call()
    graph.call = call  # type: ignore[attr-defined]
    return graph, held


def seconds(call: Callable[[], Any]) -> float:
    """Return the time of a call by events on the device."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
