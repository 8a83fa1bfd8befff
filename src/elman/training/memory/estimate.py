"""Estimates the memory of a training step on the meta device, before anything is allocated.

A whole forward and backward pass of the model with one layer of each kind, and with one more of
a kind, runs without storage, and every allocation and release is counted. Memory is linear in the
layers of a kind, so these models give every other one. This counts recomputation, checkpointed time
segments and autograd's saved tensors, which a formula on paper would miss.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.utils._pytree import tree_iter

from elman.config.run_config import RunConfig
from elman.models.build import build_model
from elman.models.inputs import ids_dtype
from elman.sections.model import ModelConfig
from elman.training.memory.meta_walk import MetaWalk
from elman.training.objective import batch_shape, loss_of

# Memory besides the tensors: interpreter, torch, threads and the allocator's slack.
PROCESS_BYTES = 600 << 20
ALLOCATOR_SLACK = 1.1
# Per parameter: the weight, its gradient and two moments, all fp32.
BYTES_PER_PARAMETER = 16


@dataclass(frozen=True)
class MemoryEstimate:
    """Bytes that a training step needs.

    Attributes:
        total: Everything together.
        fixed: The part that does not depend on the batch: weights, gradients, optimizer, process.
        batch_size: Rows it was counted for.
    """

    total: int
    fixed: int
    batch_size: int

    @property
    def per_row(self) -> float:
        """Bytes per row of the batch."""
        return (self.total - self.fixed) / self.batch_size


def estimate_memory(config: RunConfig, batch_size: int | None = None) -> MemoryEstimate:
    """Return the memory of one training step of ``config`` (at another batch size, if given)."""
    rows = batch_size or config.train.batch_size
    few, more = config.model.few_layers()
    activations, params = first = _live_bytes(config, few, rows)
    for model, number in more:
        if number:
            each = _live_bytes(config, model, rows)
            activations += number * max(0, each[0] - first[0])
            params += number * (each[1] - first[1])
    fixed = PROCESS_BYTES + BYTES_PER_PARAMETER * params + _head_copy(config)
    return MemoryEstimate(fixed + int(ALLOCATOR_SLACK * activations), fixed, rows)


def _head_copy(config: RunConfig) -> int:
    """Return the bytes of the head's weights in bf16, which the pass in fp32 here does not copy.

    With ``train.precision=auto`` the step may be one of a GPU.
    """
    train = config.train
    if train.precision == "fp32" or (train.precision == "auto" and train.device == "cpu"):
        return 0
    return 2 * config.model.vocab_size * config.model.dim


def largest_batch(config: RunConfig, available: int) -> int | None:
    """Return the largest batch size that fits in ``available`` bytes; None if no row fits."""
    rows = config.train.batch_size
    while rows >= 1:
        estimate = estimate_memory(config, rows)
        if estimate.total <= available:
            return rows
        room = max(0, available - estimate.fixed)
        # Memory is not quite linear in rows (small batches keep more per row), so check again.
        rows = min(rows - 1, int(room / max(estimate.per_row, 1.0)))
    return None


def available_memory(device: torch.device) -> int:
    """Return the bytes that this process may still allocate on ``device``."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return min([int(psutil.virtual_memory().available), *_cgroup_room()])


def _cgroup_room() -> list[int]:
    """Bytes that the container still allows, if there is one (cgroup versions 2 and 1)."""
    places = (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    )
    for limit_file, usage_file in places:
        try:
            limit = Path(limit_file).read_text().strip()
            usage = int(Path(usage_file).read_text())
        except (OSError, ValueError):
            continue
        if limit.isdigit():
            return [max(0, int(limit) - usage)]
    return []


def _live_bytes(config: RunConfig, small: ModelConfig, rows: int) -> tuple[int, int]:
    """Return (peak bytes besides weights and gradients, parameter count) of a small model."""
    model = build_model(small, backend=config.kernels.backend, device="meta")
    model.activation_checkpointing = config.train.activation_checkpointing
    params = model.num_params()
    shape = batch_shape(config.data, config.train.chunk_size, rows)
    batch = torch.empty(shape, dtype=ids_dtype(small.vocab_size), device="meta")
    with _LiveBytes() as live:
        loss, states = loss_of(config.data, model)(batch, None)
        loss.backward()
        del loss, states
    gradients = sum(4 * p.numel() for p in model.parameters() if p.grad is not None)
    return max(0, live.peak - gradients), params


class _LiveBytes(MetaWalk):
    """Counts the bytes of the live storages that were allocated under this mode."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.peak = 0
        self._seen: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        for tensor in tree_iter(result):
            if isinstance(tensor, Tensor):
                self._book(tensor.untyped_storage())
        return result

    def _book(self, storage: torch.UntypedStorage) -> None:
        if storage in self._seen:
            return
        size = storage.nbytes()
        self._seen[storage] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._release, size)

    def _release(self, size: int) -> None:
        self.now -= size
