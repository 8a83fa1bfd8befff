"""The pass before the clock: what it shows, what it compiles, and which steps it refuses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch

from elman.base.errors import UserError
from elman.config.compose import compose_config
from elman.models.build import build_model
from elman.training import first_pass, objective, preparation, trainer
from elman.training.first_pass import LayerProgress
from elman.training.listeners.totals import Totals


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("train.grad_accum=1000000000000",), r"at least \d+h\d+m, .* train.grad_accum \(1,000,"),
        (("train.grad_accum=1000000000",), r"about \d+h\d+m, .* train.grad_accum \(1,000,"),
        (("train.max_step_hours=3e-7",), r"about 0s, and train.max_step_hours=3e-07 refuses"),
    ],
    ids=["by its operations", "by the first pass", "by the setting"],
)
def test_a_first_step_of_more_than_its_limit_is_refused(
    train: Callable[..., Any], overrides: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UserError, match=said) as refused:
        train(*overrides)
    assert "train.max_step_hours=null" in str(refused.value)


def test_a_long_step_is_taken_if_the_user_allows_it(train: Callable[..., Any]) -> None:
    assert train("train.steps=1", "train.max_step_hours=null").result["steps"] == 1


def test_a_pass_that_will_take_too_long_is_refused_while_it_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A day for each layer, by a clock that jumps."""
    clock = itertools.count(step=86400.0)
    monkeypatch.setattr(first_pass.time, "perf_counter", lambda: next(clock))
    config = compose_config(["model=e1", "model.dim=128", "model.depth=3"])
    model = build_model(config.model, backend="reference", device=torch.device("cpu"))
    layers = LayerProgress(model.layers, config.train)
    with layers.watched(), pytest.raises(UserError, match=r"max_step_hours=24 refuses that"):
        model.loss(torch.zeros(1, 3, dtype=torch.uint8))
    assert not any(layer._forward_hooks for layer in model.layers)


@pytest.mark.parametrize("recomputed", [False, True])
def test_a_pass_tells_the_layer_that_it_is_at(
    monkeypatch: pytest.MonkeyPatch, recomputed: bool
) -> None:
    """By a clock that adds a second each time it is read."""
    clock = itertools.count()
    monkeypatch.setattr(first_pass.time, "perf_counter", lambda: float(next(clock)))
    config = compose_config(["model=e1", "model.dim=128", "model.depth=3"])
    model = build_model(config.model, backend="reference", device=torch.device("cpu"))
    model.activation_checkpointing = recomputed
    layers, told = LayerProgress(model.layers, config.train), [""]
    note = layers._note

    def noted(*given: Any) -> None:
        note(*given)
        told.append(layers.progress())

    monkeypatch.setattr(layers, "_note", noted)
    assert layers.progress() == ""
    with layers.watched():
        model.loss(torch.zeros(1, 3, dtype=torch.uint8))[0].backward()
    assert [text.split(", about")[0] for text in told[1:]] == [
        ", forward, layer 1 of 3",
        ", forward, layer 2 of 3",
        ", forward, layer 3 of 3",
        ", backward, layer 3 of 3",
        ", backward, layer 2 of 3",
        ", backward, layer 1 of 3",
    ]
    assert ", about" not in told[1], "nothing is done yet"
    assert all(", about" in text and text.endswith("s left") for text in told[2:])


def _compiled_by(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run compile for this backend, which takes less time than the usual one."""
    monkeypatch.setattr(objective.torch, "compile", partial(torch.compile, backend=backend))


@pytest.mark.parametrize(
    "overrides",
    [(), ("train.tbptt=true",), ("model.layers=[e88,gru]", "model.depth=2")],
    ids=["plain", "tbptt", "mixed"],
)
def test_nothing_is_compiled_inside_the_clock(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...]
) -> None:
    _compiled_by("eager", monkeypatch)
    begin = Totals.session_begins

    def begun(totals: Totals) -> None:
        torch.compiler.set_stance("fail_on_recompile")
        begin(totals)

    monkeypatch.setattr(Totals, "session_begins", begun)
    whole = ("train.compile=true", "train.val_every=2", "kernels.backend=reference", *overrides)
    try:
        first = train("train.steps=4", *whole)
        assert first.result["status"] == "ok", first.result["error"]
        torch.compiler.set_stance("default")
        torch._dynamo.reset()
        resumed = train("train.steps=6", f"train.resume={first.folder}", *whole)
        assert resumed.result["status"] == "ok", resumed.result["error"]
    finally:
        torch.compiler.set_stance("default")
        torch._dynamo.reset()


def test_the_time_of_a_step_is_told_without_that_of_the_compiler(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By a clock that stands still but for the compiler's hour."""
    now = [0.0]

    def compiled(loss: Callable[..., Any]) -> Callable[..., Any]:
        def run(batch: torch.Tensor, states: Sequence[Any] | None) -> Any:
            now[0], done[0] = now[0] + 3600.0 * (not done[0]), True
            return loss(batch, states)

        done = [False]
        return run

    class Clock:
        def perf_counter(self) -> float:
            return now[0]

    monkeypatch.setattr(objective.torch, "compile", compiled)
    monkeypatch.setattr(preparation, "time", Clock())
    monkeypatch.setattr(trainer, "SHOWN_SECONDS", 0.0)
    train("train.compile=true", "train.steps=1")
    assert "a step may take 0s, as a compiled pass did" in capfd.readouterr().out
