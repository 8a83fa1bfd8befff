"""Which models write text in one kernel, and the weights that it reads.

Shape legend: b texts, d model width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from elman.models.blocks.mlp import SwiGLU
from elman.models.blocks.norm import RMSNorm
from elman.models.cells.common.mixer import Mixer, TextLayer
from elman.models.language_model import LanguageModel
from elman.models.state import State
from elman.ops.add_norm.reference import EPS
from elman.ops.decode import step
from elman.ops.decode.step import LayerTensors, ModelTensors, Sizes, TextKernel

Copy = Callable[[Tensor], Tensor]
"""Returns a weight in the dtype of the products."""


def text_kernel(
    model: LanguageModel, states: list[State], copy: Copy, *, if_faster: bool = False
) -> TextKernel | str:
    """Return the kernel that writes on from states, or in words why there is none.

    Args:
        model: A model in evaluation mode.
        states: Those of the texts, one of each layer.
        copy: Returns a weight's copy in bf16; it stays where it is.
        if_faster: Whether only a kernel is wanted that was measured to be faster than a graph.
    """
    if model.wrapper != "rms":
        return "the model has the legacy_ln wrapper"
    if model.reset_after is not None:
        return "the model forgets at the end of a document"
    layers = [layer.text_layer() if isinstance(layer, Mixer) else None for layer in model.layers]
    if any(layer.backend_for(model.embedding) != "cuda" for layer in _mixers(model)):
        return "the layers do not run on kernels.backend=cuda"
    first = layers[0]
    if first is None:
        return "the cell or one of its options has none"
    weights = [layer for layer in layers if layer is not None]
    hidden = [0] * len(layers) if model.mlps is None else [_hidden(mlp) for mlp in model.mlps]
    kinds = {(one.plan, _shapes(one), width) for one, width in zip(weights, hidden, strict=False)}
    if len(weights) < len(layers) or len(kinds) > 1:
        return "the layers are unlike"
    sizes, rows = _sizes(model, first, hidden[0]), len(states[0]["S"])
    if problem := step.why_not(sizes, rows) or (if_faster and step.why_slower(sizes, rows)):
        return problem
    device = step.LIMITS(model.embedding.device)
    config = step.choose_config(sizes, rows, device)
    if config is None:
        return "a multiprocessor has no room for its states and weights"
    tensors = _tensors(model, weights, copy)
    if tensors is None:
        return "the weights are not computed with in bf16"
    kernel = TextKernel(config, tensors)
    _fill(kernel, states)
    return kernel


def _mixers(model: LanguageModel) -> list[Mixer]:
    return [layer for layer in model.layers if isinstance(layer, Mixer)]


def states_of(kernel: TextKernel) -> list[State]:
    """Return the states after the kernel's last step, in its own memory but for the past."""
    pasts = kernel.pasts_lbpc
    if pasts is None:
        return [{"S": states} for states in kernel.states_lbhrn]
    narrow = pasts.to(torch.bfloat16)
    return [
        {"S": states, "conv": past}
        for states, past in zip(kernel.states_lbhrn, narrow, strict=True)
    ]


def _hidden(mlp: nn.Module) -> int:
    return mlp.out_proj.shape[1] if isinstance(mlp, SwiGLU) else 0


def _shapes(layer: TextLayer) -> tuple[object, ...]:
    """Return what the weights of all layers have to have in common, beside the plan."""
    conv = None if layer.conv is None else (layer.conv.weight.shape, layer.conv.bias is None)
    inner = None if layer.cell_proj is None else layer.cell_proj.shape
    return layer.in_proj.shape, inner, layer.activated, conv


def _sizes(model: LanguageModel, first: TextLayer, hidden: int) -> Sizes:
    convolved, taps = (0, 0) if first.conv is None else first.conv.weight.shape
    values, width = model.embedding.shape
    channels, inner = first.in_proj.shape[0], 0
    if first.cell_proj is not None:
        channels, inner = first.cell_proj.shape
    return Sizes(
        first.plan,
        layers=len(model.layers),
        width=width,
        channels=channels,
        inner=inner,
        activated=first.activated,
        convolved=convolved,
        taps=taps,
        hidden=hidden,
        values=values,
    )


def _part(modules: nn.ModuleList, index: int, name: str) -> Tensor:
    return modules[index].get_parameter(name)


def _tensors(model: LanguageModel, layers: list[TextLayer], copy: Copy) -> ModelTensors | None:
    """Return the weights; None if they are not what the kernel reads."""
    found = []
    for index, layer in enumerate(layers):
        norm = model.norms[index]
        assert isinstance(norm, RMSNorm)
        mlp = None
        if model.mlps is not None and isinstance(model.mlps[index], SwiGLU):
            gain, *matrices = (
                _part(model.mlps, index, name) for name in ("norm.weight", "in_proj", "out_proj")
            )
            mlp = (gain.detach(), *map(copy, matrices))
        conv, inner = layer.conv, layer.cell_proj
        found.append(
            LayerTensors(
                norm.weight.detach(),
                copy(layer.in_proj),
                copy(layer.out_proj),
                {
                    name: one.detach().to(torch.float32).contiguous()
                    for name, one in layer.parameters.items()
                },
                cell_proj=None if inner is None else _narrowed(inner, copy),
                conv=None if conv is None else conv.weight.detach().contiguous(),
                conv_bias=None if conv is None or conv.bias is None else conv.bias.detach(),
                mlp=mlp,  # type: ignore[arg-type]
            )
        )
    gain = model.final_norm.get_parameter("weight").detach()
    embedding = model.embedding.detach()
    tensors = ModelTensors(embedding, copy(model.embedding), gain, found, EPS)
    wide, narrow = tensors.by_dtype()
    right = all(one.dtype == torch.float32 for one in wide)
    right = right and all(one.dtype == torch.bfloat16 for one in narrow)
    return tensors if right else None


def _narrowed(matrix: Tensor, copy: Copy) -> Tensor:
    """Return a matrix as a product reads it, which may be made of its parameter."""
    if isinstance(matrix, nn.Parameter):
        return copy(matrix)
    return matrix.detach().to(torch.bfloat16).contiguous()


def _fill(kernel: TextKernel, states: list[State]) -> None:
    pasts = kernel.pasts_lbpc
    for layer, state in enumerate(states):
        kernel.states_lbhrn[layer].copy_(state["S"])
        if pasts is not None:
            pasts[layer].copy_(state["conv"])
