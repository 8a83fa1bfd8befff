"""Estimates the memory of a training step on each of several ranks, whole and sharded.

Without shards every rank holds the whole model. With ``parallel.shard=full`` each rank holds its
part of the parameters, the gradients and the optimizer's moments. While it computes a layer, it
also holds the whole weights of that layer and the next one, and the layer's whole gradient. Every
rank computes its part of the batch. Buffers of the communication are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from elman.base.units import GPU_MEMORY
from elman.config.run_config import RunConfig
from elman.models.counts import count_params
from elman.training.memory.estimate import BYTES_PER_PARAMETER
from elman.training.memory.quick import quick_memory

# fp32: the weights of two layers and the gradient of one.
_GATHERED_BYTES = 12
USABLE = 0.95
"""Part of a GPU's memory that a run can use; the rest is the driver's and CUDA's own."""


@dataclass(frozen=True)
class RankMemory:
    """Bytes that one rank needs for a training step.

    Attributes:
        ranks: Number of ranks.
        rows: Rows of the batch that each computes.
        whole: Bytes if every rank holds the whole model.
        sharded: Bytes with ``parallel.shard=full``.
    """

    ranks: int
    rows: int
    whole: int
    sharded: int

    def fits(self, gpu_gb: float) -> str | None:
        """Return the ``parallel.shard`` with which it fits into GPUs of that size, or None."""
        room = USABLE * gpu_gb * GPU_MEMORY.bytes
        if self.whole <= room:
            return "none"
        return "full" if self.ranks > 1 and self.sharded <= room else None


def rank_memory(config: RunConfig, ranks: int) -> RankMemory:
    """Return the memory of a training step of ``config`` on each of several ranks.

    ``train.batch_size`` is the batch of all of them.
    """
    rows = ceil(config.train.batch_size / ranks)
    train = config.train.model_copy(update={"batch_size": rows})
    whole = quick_memory(config.model_copy(update={"train": train}))
    return RankMemory(ranks, rows, whole, whole - saved_by_shards(config, ranks))


def saved_by_shards(config: RunConfig, ranks: int) -> int:
    """Return the bytes that ``parallel.shard=full`` saves on each rank; never less than 0."""
    few, more = config.model.few_layers()
    one, *further = (
        count_params(model, config.kernels.backend) for model in (few, *(two for two, _ in more))
    )
    layers = [two - one for two in further]
    params = one + sum(n * layer for (_, n), layer in zip(more, layers, strict=True))
    parts = BYTES_PER_PARAMETER * (params - ceil(params / ranks))
    return max(0, parts - _GATHERED_BYTES * max(*layers, one - sum(layers)))
