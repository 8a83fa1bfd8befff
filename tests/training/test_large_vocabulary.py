"""Training with more tokens than bytes: in chunks as from whole logits, in less memory.

The texts here are bytes, which are a few tokens of the vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from elman.config.compose import compose_config
from elman.config.run_config import RunConfig
from elman.data.text import open_data
from elman.models.build import build_model
from elman.modes import train_description
from elman.ops import cross_entropy
from elman.training.assembly import new_state, state_of
from elman.training.loop import take_step
from elman.training.memory.estimate import estimate_memory
from elman.training.optim.optimizers import TrainingOptimizer
from elman.training.preparation import prepare_step
from tests.training.tapes import play

CPU = torch.device("cpu")
SMALL = ("model.dim=128", "model.depth=2", "train.batch_size=2", "train.chunk_size=37")
SETTINGS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "accumulation": ("train.grad_accum=2",),
    "states carried": ("train.tbptt=true", "train.grad_accum=2"),
    "documents apart": ("data.reset_at_documents=true",),
    "recomputed": ("train.activation_checkpointing=true",),
    "one position": ("train.chunk_size=1", "data.val_window=1"),
    "one row": ("train.batch_size=1",),
    "LayerNorm": ("model.wrapper=legacy_ln",),
}


@pytest.fixture
def composed(tmp_path: Path) -> Callable[..., RunConfig]:
    """Return a function that composes a run of a tiny model with a vocabulary."""
    text = tmp_path / "text.txt"
    text.write_bytes(b"\x1e".join(bytes(range(97, 123)) * (n % 4 + 1) for n in range(60)))

    def compose(vocabulary: int, *overrides: str, model: str = "e88_tiny") -> RunConfig:
        config = compose_config([f"model={model}", *SMALL, f"data.path={text}", *overrides])
        return config.model_copy(update={"model": config.model.with_vocabulary(vocabulary)})

    return compose


def trained(config: RunConfig, *, graph: bool = False, parts: int = 1) -> list[Tensor]:
    """Return the losses, the gradients' norms and then the weights of a few steps."""
    with open_data(config.data, config.train.chunk_size, print) as data:
        torch.manual_seed(0)
        reset = config.data.reset_after
        model = build_model(config.model, backend=config.kernels.backend, reset_after=reset)
        model.activation_checkpointing = config.train.activation_checkpointing
        model.time_parts = parts
        optimizer = TrainingOptimizer(config.optim, model)
        state = state_of(config, data, model, optimizer, CPU, graph=graph)
        try:
            prepare_step(state)
            steps = [take_step(state, 0.1) for _ in range(3)]
            numbers = [number for step in steps for number in (step.loss, step.grad_norm)]
            return [*numbers, *(w.detach().clone() for w in model.parameters())]
        finally:
            state.batches.close()


def assert_near(one: Sequence[Tensor], other: Sequence[Tensor]) -> None:
    """Compare losses, norms and weights.

    Optimizers make rounding larger: in weights, and in norms of gradients behind the first update.
    The third of these changes by 8e-6 if weights begin with other last bits, of one position a row.
    """
    for place, (found, expected) in enumerate(zip(one, other, strict=True)):
        updated_norm = place % 2 == 1 and place > 1
        limit = 1e-4 if expected.ndim else 4e-5 if updated_norm else 1e-5
        assert float((found - expected).norm()) <= limit * float(expected.norm())


@pytest.fixture
def in_chunks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Return a function that lets a loss pass through the head so many positions at a time."""

    def limit(vocabulary: int, positions: int) -> None:
        monkeypatch.setattr(cross_entropy, "MOST_LOGITS", vocabulary * positions)

    return limit


@pytest.mark.parametrize("overrides", SETTINGS.values(), ids=SETTINGS)
def test_a_run_in_chunks_is_that_from_whole_logits(composed, in_chunks, overrides) -> None:
    config = composed(1000, *overrides)
    positions = config.train.batch_size * config.train.chunk_size
    whole = trained(config)
    in_chunks(1000, min(8, positions // 2))
    assert_near(trained(config), whole)


def test_50281_tokens_train_as_from_whole_logits(composed, in_chunks) -> None:
    config = composed(50281)
    whole = trained(config)
    in_chunks(50281, 20)
    assert_near(trained(config), whole)


def test_a_replayed_run_in_chunks_is_bitwise_the_eager_one(
    composed, in_chunks, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(monkeypatch)
    in_chunks(1000, 8)
    config = composed(1000, "train.tbptt=true", "train.grad_accum=2")
    assert all(map(torch.equal, trained(config, graph=True), trained(config)))


def test_layers_side_by_side_give_the_same_run(composed, in_chunks) -> None:
    in_chunks(1000, 8)
    config = composed(1000)
    assert_near(trained(config, parts=3), trained(config))


def test_bytes_have_whole_logits_however_many(composed, in_chunks) -> None:
    config = composed(256)
    before = trained(config)
    in_chunks(256, 1)
    assert all(map(torch.equal, trained(config), before))


def test_a_transform_sees_plain_operations(composed, in_chunks) -> None:
    """The gradient of every row by itself, which no loss in chunks has."""
    in_chunks(1000, 4)
    model = build_model(composed(1000, model="e1").model, backend="reference", dtype=torch.float64)
    weights = {name: p.detach() for name, p in model.named_parameters()}
    tokens_bt = torch.randint(1000, (3, 12))

    def loss(own: dict[str, Tensor], row_t: Tensor) -> Any:
        call = functional_call(model, own)
        return call(row_t.unsqueeze(0))

    each = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, tokens_bt)
    model.loss(tokens_bt)[0].backward()
    whole = model.embedding.grad
    assert whole is not None
    torch.testing.assert_close(each["embedding"].mean(0), whole, rtol=1e-9, atol=1e-12)


def functional_call(model: Any, weights: dict[str, Tensor]) -> Callable[[Tensor], Tensor]:
    """Return the model's loss with other weights."""

    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, tokens_bt: Tensor) -> Tensor:
            return self.model.loss(tokens_bt)[0]

    own = {f"model.{name}": value for name, value in weights.items()}
    return lambda tokens_bt: torch.func.functional_call(Loss(), own, (tokens_bt,))


def test_a_run_says_how_its_loss_is_computed(train, capsys, monkeypatch) -> None:
    monkeypatch.setattr(train_description, "VOCAB_SIZE", 255)
    whole = train(folder="whole")
    assert "cross entropy over 256 tokens from whole logits: by" in capsys.readouterr().out
    assert whole.result["loss_chunk"] is None
    monkeypatch.setattr(cross_entropy, "_BYTES", 255)
    monkeypatch.setattr(cross_entropy, "MOST_LOGITS", 256 * 8)
    chunks = train(folder="chunks")
    said = re.search(r"over 256 tokens in chunks of 8 of (\d+) positions", capsys.readouterr().out)
    assert said is not None
    assert int(said[1]) > 8
    assert chunks.result["loss_chunk"] == 8
    assert "loss_chunk" in chunks.result["definitions"]


def test_the_memory_estimate_knows_that_logits_are_not_whole(composed, monkeypatch) -> None:
    sizes = ("train.batch_size=32", "train.chunk_size=512")
    config = composed(50281, *sizes, model="mingru")
    in_chunks = estimate_memory(config).total
    monkeypatch.setattr(cross_entropy, "MOST_LOGITS", 1 << 60)
    whole = estimate_memory(config).total
    logits = 32 * 512 * 50281
    # Whole: the softmax and its gradient, both fp32. In chunks: one chunk of each.
    assert whole - in_chunks > 4 * logits
    assert in_chunks < 4 * logits


def test_a_run_trusts_the_tokens_of_its_data(composed) -> None:
    config = composed(1000)
    with open_data(config.data, config.train.chunk_size, print) as data:
        state = new_state(config, data, CPU, graph=False)
        state.batches.close()
    assert not state.model.checks_ids


def test_ids_above_bytes_are_learned_and_counted() -> None:
    config = compose_config(["model=e1", "model.dim=128", "model.depth=1"]).model
    model = build_model(config.with_vocabulary(50281))
    assert model.num_params() == build_model(config).num_params() + (50281 - 256) * 128
    tokens_bt = torch.tensor([[50280, 300, 50280, 0, 50279]], dtype=torch.int32)
    loss, _ = model.loss(tokens_bt)
    logits_btv, _ = model(tokens_bt[:, :-1])
    wanted = functional.cross_entropy(logits_btv.flatten(0, 1), tokens_bt[0, 1:].long())
    torch.testing.assert_close(loss, wanted)
    with pytest.raises(ValueError, match=r"of 0 to 50280, not 50281$"):
        model.loss(torch.tensor([[50281, 0]]))
