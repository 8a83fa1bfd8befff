"""The optimizers: what decays, what a blocked step leaves alone, and which weights are kept."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from schedulefree import AdamWScheduleFree
from torch import nn

from elman.config.compose import compose_config
from elman.sections.optim import ScheduleFreeConfig
from elman.training.optim.optimizers import TrainingOptimizer

NAMES = ("adamw", "muon", "schedulefree", "legacy")


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))


def build(name: str, model: nn.Module, *overrides: str) -> TrainingOptimizer:
    return TrainingOptimizer(compose_config([f"optim={name}", *overrides]).optim, model)


def fill_gradients(model: nn.Module, value: float) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)


def snapshot(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("name", NAMES)
def test_a_blocked_step_changes_neither_weights_nor_moments(name: str) -> None:
    plain, blocked = small_model(), small_model()
    optimizers = [build(name, model, "optim.warmup_steps=1") for model in (plain, blocked)]
    no, yes = torch.tensor(False), torch.tensor(True)
    for optimizer, model in zip(optimizers, (plain, blocked), strict=True):
        fill_gradients(model, 0.1)
        optimizer.set_rate(1, 0.0)
        optimizer.step(no)
    fill_gradients(blocked, float("nan"))
    optimizers[1].step(yes)
    for optimizer, model in zip(optimizers, (plain, blocked), strict=True):
        fill_gradients(model, 0.2)
        optimizer.step(no)
    assert all(map(torch.equal, snapshot(plain), snapshot(blocked)))


@pytest.mark.parametrize(
    ("name", "decays_gains"), [*zip(NAMES, (False, False, False, True), strict=True)]
)
def test_decay_acts_on_matrices_only(name: str, decays_gains: bool) -> None:
    model = small_model()
    before = [value.clone() for value in snapshot(model)]
    optimizer = build(name, model, "optim.weight_decay=0.5", "optim.warmup_steps=1", "optim.lr=0.1")
    for step in range(3):
        fill_gradients(model, 0.0)
        optimizer.set_rate(1 + 2 * step, 0.0)
        optimizer.step(torch.tensor(False))
    with optimizer.kept_weights():
        for old, new in zip(before, snapshot(model), strict=True):
            if old.ndim == 2:
                assert new.norm() < old.norm()
            elif old.abs().sum() > 0:
                assert torch.equal(old, new) is not decays_gains


def test_parameters_that_ask_for_it_do_not_decay() -> None:
    model = nn.Linear(3, 3)
    model.weight.no_weight_decay = True  # type: ignore[assignment]
    before = model.weight.detach().clone()
    optimizer = build("adamw", model, "optim.weight_decay=0.5")
    fill_gradients(model, 0.0)
    optimizer.set_rate(200, 0.0)
    optimizer.step(torch.tensor(False))
    assert torch.equal(before, model.weight)


@pytest.mark.parametrize("name", NAMES)
def test_trained_weights_return_bit_for_bit_after_the_kept_ones(name: str) -> None:
    model = small_model()
    optimizer = build(name, model, "optim.lr=0.1")
    for step in range(5):
        fill_gradients(model, 0.1 * (step + 1))
        optimizer.set_rate(200 + step, 0.0)
        optimizer.step(torch.tensor(False))
    before = snapshot(model)
    with optimizer.kept_weights():
        kept = snapshot(model)
    assert all(map(torch.equal, before, snapshot(model)))
    assert all(map(torch.equal, before, kept)) is not optimizer.keeps_average


def test_hyperparameters_of_a_resumed_run_are_the_named_ones() -> None:
    model = small_model()
    saved = build("adamw", model).state_dict()
    resumed = build("adamw", model, "optim.weight_decay=0.25", "optim.beta2=0.5")
    resumed.load_state_dict(saved)
    group = resumed.state_dict()["optimizer"]["param_groups"][0]
    assert (group["weight_decay"], group["betas"]) == (0.25, (0.9, 0.5))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("limit", [0.5, 1e3, math.inf])
def test_gradients_are_clipped_for_one_step(name: str, limit: float) -> None:
    models = small_model(), small_model()
    for ours, model in zip((True, False), models, strict=True):
        optimizer = build(name, model, "optim.warmup_steps=1", "optim.eps=0.1")
        for value in (3.0, 2.0):  # the second step is not clipped
            fill_gradients(model, value)
            clip = optimizer.clip if ours else nn.utils.clip_grad_norm_
            if value == 3.0:
                norm = clip(model.parameters(), limit)
                assert norm == pytest.approx(
                    3.0 * sum(p.numel() for p in model.parameters()) ** 0.5
                )
            optimizer.set_rate(1, 0.0)
            optimizer.step(torch.tensor(False))
    assert all(map(torch.equal, *map(snapshot, models)))


def test_schedule_free_weights_are_the_librarys_and_so_is_what_is_saved() -> None:
    ours, theirs = small_model(), small_model()
    optimizer = build("schedulefree", ours, "optim.lr=0.01", "optim.warmup_steps=3")
    given = optimizer.config
    assert isinstance(given, ScheduleFreeConfig)
    groups: list[dict[str, Any]] = [
        {"params": [p for p in theirs.parameters() if p.ndim == axes], "weight_decay": decay}
        for axes, decay in ((2, given.weight_decay), (1, 0.0))
    ]
    betas = (given.beta1, given.beta2)
    library = AdamWScheduleFree(groups, lr=0.01, warmup_steps=3, betas=betas, eps=given.eps)
    library.train()
    generator = torch.Generator().manual_seed(0)
    for step in range(12):
        if step == 6:  # a checkpoint of the library's optimizer continues with ours
            optimizer = build("schedulefree", ours, "optim.lr=0.01", "optim.warmup_steps=3")
            saved = {"optimizer": library.state_dict(), "matrices": None, "warmup_progress": None}
            optimizer.load_state_dict(copy.deepcopy(saved))
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            one.grad = torch.randn(one.shape, generator=generator)
            other.grad = one.grad.clone()
        optimizer.step(torch.tensor(False))
        library.step()
    for one, other in zip(snapshot(ours), snapshot(theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    found, wanted = optimizer.state_dict()["optimizer"], library.state_dict()
    for group, other in zip(found["param_groups"], wanted["param_groups"], strict=True):
        assert group["k"] == other["k"] == 12
        assert group["weight_sum"] == pytest.approx(other["weight_sum"])
        assert group["lr_max"] == pytest.approx(other["lr_max"])
    assert found["state"][0].keys() == wanted["state"][0].keys()
