"""CUDA graphs for times on a GPU: a replay has no time of Python's in it.

A launch from Python takes 10 to 50 us, and a layer's kernel may take less. Training replays graphs,
so a layer timed launch by launch would say nothing about it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from elman.base.errors import UserError
from elman.bench.clock import clock_for
from elman.bench.subjects import LayerSubject
from elman.kernels.graphs import CudaGraphs, why_not_captured
from elman.models.backends import on_slow_path

Asked = bool | Literal["auto"]
_SECONDS = 2e-3  # of the calls in one graph
_MOST_CALLS = 20
_REPLAYS = 5


def refuse_without_gpu(graph: Asked, device: torch.device) -> None:
    """Refuse ``bench.graph=true`` where there is no GPU.

    Raises:
        UserError: as said.
    """
    if graph is True and device.type != "cuda":
        raise UserError(
            f"bench.graph=true: a CUDA graph needs a GPU, and the benchmark runs on {device.type} "
            "here; use bench.graph=auto"
        )


def record_layers(
    subjects: Sequence[LayerSubject], graph: Asked, device: torch.device
) -> list[str]:
    """Record the layers that are to be replayed, and return notes on those that cannot be.

    Args:
        subjects: The layers.
        graph: As ``bench.graph``. With ``auto``, a Python loop over time is not recorded: training
            does not, either.
        device: Where they run.

    Raises:
        UserError: ``graph`` is true, and a layer cannot be recorded.
    """
    if graph is False or device.type != "cuda":
        return []
    notes = []
    for subject in subjects:
        if graph == "auto" and on_slow_path(subject.backend):
            continue
        if why := _problem(subject, device):
            if graph is True:
                raise UserError(
                    f"bench.graph=true: {subject.name} on {subject.backend} cannot be a CUDA graph "
                    f"({why}); use bench.graph=auto"
                )
            notes.append(
                f"{subject.name}, {subject.backend}: launched by Python, one operation at a time: "
                f"it cannot be a CUDA graph ({why})"
            )
    return notes


def _problem(subject: LayerSubject, device: torch.device) -> str:
    """Record a layer; return why it cannot be recorded, or nothing."""
    try:
        subject.record(CudaGraphs(device))
    except Exception as error:
        return why_not_captured(error)
    return ""


def device_seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds that a GPU takes for a call, without those of its launches.

    Args:
        call: What to time; it has been called before, so that nothing is compiled here.
        device: The GPU.
    """
    graphs = CudaGraphs(device)
    with graphs.aside():
        call()  # a library may prepare itself for the stream

    def calls() -> None:
        for _ in range(count):
            call()

    count = max(1, min(_MOST_CALLS, int(_SECONDS / max(_timed(call, device), 1e-6))))
    replay = graphs.record(calls)
    replay()
    return min(_timed(replay, device) for _ in range(_REPLAYS)) / count


def _timed(call: Callable[[], object], device: torch.device) -> float:
    clock = clock_for(device)
    clock.start()
    call()
    clock.mark("call")
    return clock.read()["call"]
