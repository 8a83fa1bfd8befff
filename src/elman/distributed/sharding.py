"""Models of which every rank holds a part: PyTorch's FSDP2, one group of weights for each layer.

Outside a pass, parameters, gradients and moments are DTensors. What is saved and loaded is whole.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils._pytree import tree_map

from elman.base.errors import UserError
from elman.models.language_model import LanguageModel

_UNDECAYED = "no_weight_decay"


def shard_mesh(shard: str, hosts: list[str], device_type: str) -> DeviceMesh:
    """Return which ranks hold parts of one copy of the model.

    Args:
        shard: As ``parallel.shard``, not ``none``.
        hosts: The host of each rank.
        device_type: ``cuda`` or ``cpu``.

    Raises:
        UserError: with ``hybrid``, the hosts have different numbers of ranks, or there is one.
    """
    size = len(hosts)
    if shard == "full":
        return init_device_mesh(device_type, (size,), mesh_dim_names=("shard",))
    each = {hosts.count(host) for host in hosts}
    if len(each) > 1 or each == {size}:
        why = "all ranks are on one host" if each == {size} else "hosts have different numbers"
        raise UserError(
            f"parallel.shard=hybrid: {why}, and it copies the model from host to host; "
            "use parallel.shard=full"
        )
    inside = each.pop()
    return init_device_mesh(device_type, (size // inside, inside), mesh_dim_names=("copy", "shard"))


def shard_model(model: LanguageModel, mesh: DeviceMesh) -> None:
    """Leave a part of every weight on this rank, and gather each layer's weights for its pass.

    Args:
        model: The whole model, equal on every rank.
        mesh: The ranks that share it.
    """
    policy = MixedPrecisionPolicy(reduce_dtype=torch.float32)
    model.casts_at_once = False  # the copies would outlive the gathered weights
    undecayed = [n for n, p in model.named_parameters() if getattr(p, _UNDECAYED, False)]
    for layer in model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    # The parameters are new objects now, and the optimizer looks for the old ones' mark.
    for name, parameter in model.named_parameters():
        if name in undecayed:
            setattr(parameter, _UNDECAYED, True)
    model.register_load_state_dict_pre_hook(_cut_whole_weights)  # type: ignore[no-untyped-call]


def is_sharded(model: nn.Module) -> bool:
    """Return whether this rank holds only a part of the model."""
    return isinstance(model, FSDPModule)


def whole(tree: Any, keep: bool) -> Any:
    """Return a tree with every part of a tensor replaced by the whole, in main memory.

    Every rank must call it with the same tree.

    Args:
        tree: Containers of tensors.
        keep: Whether this rank wants the result; else it gets empty tensors, to save memory.
    """

    def gathered(leaf: Any) -> Any:
        if not isinstance(leaf, DTensor):
            return leaf
        full = leaf.full_tensor()
        return full.cpu() if keep else full.new_empty(0)

    return tree_map(gathered, tree)


def cut_like(tree: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return an optimizer's saved state with whole tensors cut as its parameters are."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    state = {
        index: {key: _cut(value, parameters[index]) for key, value in moments.items()}
        for index, moments in tree["state"].items()
    }
    return {**tree, "state": state}


def _cut_whole_weights(
    module: nn.Module, state: dict[str, Any], prefix: str, *unused: object
) -> None:
    for name, parameter in module.named_parameters():
        if (key := f"{prefix}{name}") in state:
            state[key] = _cut(state[key], parameter)


def _cut(value: Any, like: Tensor) -> Any:
    """Return this rank's part of a whole tensor if ``like`` is one and has the same shape."""
    if not isinstance(like, DTensor) or not isinstance(value, Tensor) or isinstance(value, DTensor):
        return value
    if value.shape != like.shape:
        return value
    placed = value.to(like.device)
    # Every rank has read the same file, so nothing need be sent.
    return distribute_tensor(placed, like.device_mesh, like.placements, src_data_rank=None)
