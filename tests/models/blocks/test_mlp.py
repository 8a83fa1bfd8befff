"""The MLP behind every mixer."""

from __future__ import annotations

import pytest
import torch

from elman.base.errors import UserError
from elman.config.compose import compose_config
from elman.config.run_config import flatten
from elman.config.validate import validate
from elman.models.blocks.mlp import SwiGLU
from elman.models.build import build_model
from elman.models.counts import count_params
from elman.models.sizing import solve

TINY = ("model=e88_tiny", "model.dim=128", "model.depth=2")


def test_the_mlp_is_its_equation() -> None:
    torch.manual_seed(0)
    mlp = SwiGLU(6, 10, dtype=torch.float64)
    torch.nn.init.normal_(mlp.norm.weight)
    stream, branch = torch.randn(2, 3, 4, 6, dtype=torch.float64)
    added, found = mlp(stream, branch)
    torch.testing.assert_close(added, stream + branch)
    scale = ((stream + branch).square().mean(-1, keepdim=True) + 1e-5).sqrt()
    u = (stream + branch) / scale * mlp.norm.weight
    gate, value = u @ mlp.in_proj[:10].T, u @ mlp.in_proj[10:].T
    torch.testing.assert_close(found, (gate * gate.sigmoid() * value) @ mlp.out_proj.T)


def test_an_mlp_of_zeros_changes_no_logit_and_one_of_others_does() -> None:
    tokens = torch.randint(256, (2, 9))
    torch.manual_seed(0)
    plain = build_model(compose_config([*TINY]).model)
    torch.manual_seed(0)
    found = build_model(compose_config([*TINY, "model.mlp_ratio=1.5"]).model)
    wanted, _ = plain(tokens)
    assert (found(tokens)[0] - wanted).abs().max() > 1e-3
    assert found.mlps is not None
    for mlp in found.mlps:
        torch.nn.init.zeros_(mlp.out_proj)
    torch.testing.assert_close(found(tokens)[0], wanted)


def test_recomputing_it_gives_the_same_gradients() -> None:
    model = build_model(compose_config([*TINY, "model.mlp_ratio=1"]).model)
    tokens = torch.randint(256, (2, 9))
    found = []
    for recompute in (False, True):
        model.activation_checkpointing = recompute
        found.append(torch.autograd.grad(model.loss(tokens)[0], [*model.mlps.parameters()]))
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize(("ratio", "width"), [(1, 128), (2.5, 384), (0.1, 128)])
def test_its_parameters_are_counted(ratio, width) -> None:
    config = compose_config([*TINY, f"model.mlp_ratio={ratio}"]).model
    assert config.mlp_width == width
    more = build_model(config, device="meta").num_params()
    more -= build_model(compose_config([*TINY]).model, device="meta").num_params()
    assert more == 2 * (3 * 128 * width + 128)


def test_solve_finds_a_size_with_it() -> None:
    config = compose_config(["model=e88_tiny", "model.mlp_ratio=2"]).model
    plain = compose_config(["model=e88_tiny"]).model
    own, without = (solve(one, count_params, 3_000_000, "depth") for one in (config, plain))
    assert own.nearest.size < without.nearest.size


def test_without_it_a_configuration_is_written_as_before_and_read_again_with_it() -> None:
    plain = compose_config([*TINY])
    assert "mlp_ratio" not in flatten(plain)["model"]
    asked = compose_config([*TINY, "model.mlp_ratio=2"])
    assert validate(flatten(asked)).model.mlp_ratio == 2


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (
            ("model=llama", "model.mlp_ratio=2"),
            "model.mlp_ratio=2: cell llama has an MLP of its own; "
            "use model.mlp_width=<channels> or drop model.mlp_ratio",
        ),
        (
            ("model=mamba2_896x20_legacy", "model.mlp_ratio=1"),
            "model.mlp_ratio=1: the MLP has an RMSNorm, which model.wrapper=legacy_ln has not; "
            "add model.wrapper=rms or drop the MLP",
        ),
        (("model=e1", "model.mlp_ratio=-1"), "model.mlp_ratio=-1: must be at least 0"),
    ],
)
def test_where_it_does_not_fit(typed, message) -> None:
    with pytest.raises(UserError) as caught:
        compose_config(typed)
    assert str(caught.value) == message
