"""One optimizer step: what the gradients are when they reach the optimizer, and the states."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from elman.base.errors import UserError
from elman.config.compose import compose_config
from elman.data.text import open_data
from elman.models.build import build_model
from elman.models.language_model import LanguageModel
from elman.training.assembly import state_of
from elman.training.loop import take_step
from elman.training.optim.optimizers import TrainingOptimizer
from elman.training.training_state import TrainingState

CPU = torch.device("cpu")
TINY = ("model=e1", "model.dim=128", "model.depth=1", "train.chunk_size=16", "data.val_window=16")


@contextmanager
def stepping(text: Path, *overrides: str) -> Iterator[TrainingState]:
    """Yield the training state of the tiny model on a text."""
    config = compose_config([*TINY, f"data.path={text}", *overrides])
    with open_data(config.data, config.train.chunk_size, print) as data:
        torch.manual_seed(0)
        model = build_model(config.model, backend="reference")
        optimizer = TrainingOptimizer(config.optim, model)
        made = state_of(config, data, model, optimizer, CPU, graph=False)
        try:
            yield made
        finally:
            made.batches.close()


def given_gradients(
    state: TrainingState, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Tensor]]:
    """Return a list that fills with the gradients that each step gives to the optimizer."""
    given: list[dict[str, Tensor]] = []
    step = state.optimizer.step

    def note(blocked: Tensor) -> None:
        named = state.model.named_parameters()
        given.append({name: p.grad.clone() for name, p in named if p.grad is not None})
        step(blocked)

    monkeypatch.setattr(state.optimizer, "step", note)
    return given


def norm_of(gradients: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(grad.double().square().sum()) for grad in gradients.values()))


def test_the_optimizer_gets_gradients_of_no_larger_norm_than_grad_clip(
    text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norms: dict[str, float] = {}
    for clip in ("0", "1e-3", "1e6"):
        with stepping(text_file, "train.batch_size=4", f"train.grad_clip={clip}") as state:
            given = given_gradients(state, monkeypatch)
            taken = take_step(state, 0.0)
            norms[clip] = norm_of(given[0])
            # What is recorded is the norm before clipping.
            assert float(taken.grad_norm) == pytest.approx(norms["0"], rel=1e-5)
    assert norms["0"] > 0.1
    assert norms["1e-3"] == pytest.approx(1e-3, rel=1e-3)
    assert norms["1e6"] == pytest.approx(norms["0"], rel=1e-6)


def test_accumulated_gradients_are_those_of_one_batch_of_all_rows(
    text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {}
    for rows, accum in ((8, 1), (4, 2), (2, 4)):
        overrides = (f"train.batch_size={rows}", f"train.grad_accum={accum}", "train.grad_clip=0")
        with stepping(text_file, *overrides) as state:
            given = given_gradients(state, monkeypatch)
            taken = take_step(state, 0.0)
            found[accum] = given[0]
            assert float(taken.grad_norm) == pytest.approx(norm_of(given[0]), rel=1e-5)
    for accum in (2, 4):
        assert found[accum].keys() == found[1].keys()
        for name, whole in found[1].items():
            torch.testing.assert_close(found[accum][name], whole, rtol=1e-3, atol=1e-6)


def counting_text(path: Path, size: int) -> Path:
    """Write a text whose neighboring bytes count up: it shows whether two rows are one text."""
    path.write_bytes(bytes(place % 251 for place in range(size)))
    return path


def test_states_are_carried_exactly_where_the_text_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int, bool]] = []
    loss = LanguageModel.loss

    def note(model: LanguageModel, tokens: Tensor, states: Any = None) -> Any:
        seen.append((int(tokens[0, 0]), int(tokens[0, -1]), states is not None))
        return loss(model, tokens, states)

    monkeypatch.setattr(LanguageModel, "loss", note)
    text = counting_text(tmp_path / "text", 2 * 16 * 7)
    overrides = ("train.tbptt=true", "train.batch_size=2", "train.grad_accum=3")
    with stepping(text, *overrides) as state:
        for _ in range(12):
            take_step(state, 0.0)
    assert len(seen) == 36
    pairs = itertools.pairwise(seen)
    goes_on = [False, *(first == last for (_, last, _), (first, _, _) in pairs)]
    assert [carried for _, _, carried in seen] == goes_on
    # Restarts come in the middle of optimizer steps too, and most batches continue.
    restarts = [number for number, on in enumerate(goes_on) if not on]
    assert len(restarts) > 4
    assert any(number % 3 for number in restarts)
    assert len(restarts) < 18


@pytest.mark.parametrize("accum", [1, 3])
@pytest.mark.parametrize("tbptt", ["false", "true"])
@pytest.mark.parametrize("cell", ["model=e1", "model=e42"])
def test_a_step_whose_data_cannot_be_read_leaves_everything_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accum: int, tbptt: str, cell: str
) -> None:
    text = counting_text(tmp_path / "text", 4096)
    overrides = (
        cell,
        "train.batch_size=2",
        f"train.tbptt={tbptt}",
        f"train.grad_accum={accum}",
        "model.dropout=0.2",
        "optim.warmup_steps=2",
    )
    with stepping(text, *overrides) as state:
        for _ in range(2):
            take_step(state, 0.3)
        before = state.state_dict()
        weights = {name: value.clone() for name, value in state.model.state_dict().items()}
        read = _failing_at(state, accum - 1)
        with monkeypatch.context() as patch:
            patch.setattr(state.batches, "next", read)
            with pytest.raises(UserError, match="shrank"):
                take_step(state, 0.5)
        after = state.state_dict()
        assert after.pop("data_wait") >= before.pop("data_wait")
        assert same(after, before)
        assert all(
            torch.equal(value, weights[name]) for name, value in state.model.state_dict().items()
        )
        assert take_step(state, 0.5).step == 3


def same(left: Any, right: Any) -> bool:
    """Whether two states are equal, bit for bit."""
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return torch.equal(left, right) if isinstance(left, Tensor) else bool(left == right)


def _failing_at(state: TrainingState, good: int) -> Callable[[], Any]:
    """Return a reading of batches that fails after so many good ones."""
    real, left = state.batches.next, [good]

    def read() -> Any:
        if left[0] == 0:
            raise UserError("data.path=text: shrank")
        left[0] -= 1
        return real()

    return read
