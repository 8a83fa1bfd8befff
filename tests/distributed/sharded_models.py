"""Two ranks that compare models they share, a row each, with whole ones; forks of one process.

Called with names of models; each rank prints one JSON object for each model.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import warnings
from typing import Any

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from elman.config.compose import compose_config
from elman.distributed.sharding import shard_model
from elman.models.build import build_model
from elman.models.cells import registry
from elman.models.language_model import LanguageModel
from elman.ops import cross_entropy

SMALL = ("model.dim=128", "model.depth=2")


def _built(name: str) -> LanguageModel:
    """Build a model.

    "NAME of N" has a vocabulary of N tokens, and its loss in chunks; "NAME+CELL+..." has a layer of
    its own cell, and one of each other.
    """
    torch.manual_seed(1)
    name, _, vocabulary = name.partition(" of ")
    name, *others = name.split("+")
    small = SMALL if not others else (f"model.dim=128 model.depth={len(others) + 1}".split())
    placed = ",".join(f"{{cell:{cell},at:{at}}}" for at, cell in enumerate(others, 1))
    small = [*small, *([f"model.layers=[{placed}]"] if others else [])]
    config = compose_config([f"model={name}", *small]).model
    if vocabulary:
        config = config.with_vocabulary(int(vocabulary))
        cross_entropy.MOST_LOGITS = 4 * int(vocabulary)
    plain = "reference" in registry.cell(config.cell).backends
    backend = "reference" if plain else "torch"
    return build_model(config, backend=backend, device="cpu", allow_slow=True)


def _step(model: Any, rows: slice) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss of a second chunk and its gradients, as a training step computes them.

    Args:
        model: The model, or DistributedDataParallel around it.
        rows: Which of the two rows it learns from.
    """
    tokens = torch.arange(2 * 2 * 6).reshape(2, 2, 6)[:, rows] * 7 % 256
    own = model.module if isinstance(model, DistributedDataParallel) else model
    own.begin_step()
    _, states = own.loss(tokens[0])
    states = [{k: v.detach() for k, v in s.items()} for s in states]
    if own is model:
        loss, _ = model.loss(tokens[1], states)
    else:
        loss, _ = model(tokens[1][:, :-1], states, targets_bt=tokens[1][:, 1:])
    loss.backward()
    return loss.detach(), {n: p.grad for n, p in own.named_parameters() if p.grad is not None}


def _by_elman(model: LanguageModel, mesh: Any) -> LanguageModel:
    shard_model(model, mesh)
    return model


def _by_hand(model: LanguageModel, mesh: Any) -> LanguageModel:
    """Cut a model as its user would."""
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _copied(model: LanguageModel, mesh: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model)


def compare(name: str, mesh: Any) -> dict[str, float]:
    """Return how far ranks with a row each are from a whole model with both rows."""
    loss, gradients = _step(_built(name), slice(None))
    ways: dict[str, Any] = {"by elman": _by_elman, "by hand": _by_hand}
    if " of " in name:
        ways["copied"] = _copied
    found = {}
    for how, shared in ways.items():
        own = slice(mesh.get_rank(), mesh.get_rank() + 1)
        other, mine = _step(shared(_built(name), mesh), own)
        torch.distributed.all_reduce(other)
        assert mine.keys() == gradients.keys(), name
        full = {n: g.full_tensor() if isinstance(g, DTensor) else g for n, g in mine.items()}
        apart = [float((full[n] - g).norm()) for n, g in gradients.items()]
        size = [float(g.norm()) for g in gradients.values()]
        found[how] = max(abs(float(other / 2 - loss)), sum(apart) / sum(size))
    return found


def _rank(rank: int, port: int, names: list[str]) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    init_process_group("gloo", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for name in names:
        try:
            found: dict[str, Any] = compare(name, mesh)
        except Exception as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        os.write(1, (json.dumps({"model": name, "rank": rank, **found}) + "\n").encode())
    destroy_process_group()


def main(names: list[str]) -> None:
    """Fork both ranks and wait for them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for rank in range(2):
        if os.fork() == 0:
            try:
                _rank(rank, port, names)
            finally:
                os._exit(0)
    for _ in range(2):
        os.wait()


main(sys.argv[1:])
