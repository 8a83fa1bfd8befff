"""Measures the bytes that an iteration saves for its backward pass, and its peak."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity, profile

from elman.bench.subjects import Subject


def saved_bytes(subject: Subject) -> int:
    """Return the bytes of all storages that autograd saves between forward and backward.

    Parameters do not count, because they exist anyway. The layer's input counts.
    """
    weights = {weight.untyped_storage().data_ptr() for weight in subject.weights()}
    kept: dict[int, int] = {}
    held: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and not tensor.is_meta:
            kept[storage.data_ptr()] = storage.nbytes()
            held.append(tensor)  # keeps its address from being reused
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        subject.loss_and_gradients()
    return sum(kept.values())


def peak_bytes(subject: Subject) -> int:
    """Return the peak bytes of forward and backward, beyond what was allocated before."""
    if subject.device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats(subject.device)
        before = torch.cuda.memory_allocated(subject.device)
        subject.loss_and_gradients()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated(subject.device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        subject.loss_and_gradients()
    assert profiler.profiler is not None
    results = profiler.profiler.kineto_results
    assert results is not None
    changes = [(e.start_ns(), e.nbytes()) for e in results.events() if e.name() == "[memory]"]
    now = peak = 0
    for _, change in sorted(changes, key=lambda one: one[0]):
        now += change
        peak = max(peak, now)
    return peak
