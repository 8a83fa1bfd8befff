"""The extrapolated memory estimate is the exact one, nearly, and sooner there."""

from __future__ import annotations

import pytest

from elman.config.compose import compose_config
from elman.training.memory.estimate import estimate_memory
from elman.training.memory.quick import quick_memory

SMALL = ["model.dim=256", "model.depth=3"]


@pytest.mark.parametrize(
    ("model", "overrides"),
    [
        ("e42", []),
        ("e14", []),
        ("e23", ["train.activation_checkpointing=true"]),
        ("e88f_h32n16", ["train.batch_size=6"]),
    ],
)
def test_a_time_loop_is_extrapolated_nearly(model: str, overrides: list[str]) -> None:
    config = compose_config([f"model={model}", *SMALL, "train.chunk_size=80", *overrides])
    # The part that does not depend on the batch is exact: what is compared is the rest, which is
    # most of it at real sizes.
    exact = estimate_memory(config)
    assert quick_memory(config) - exact.fixed == pytest.approx(exact.total - exact.fixed, rel=0.1)


@pytest.mark.parametrize("model", ["mingru", "llama"])
def test_a_layer_without_a_time_loop_is_estimated_exactly(model: str) -> None:
    config = compose_config([f"model={model}", *SMALL])
    assert quick_memory(config) == estimate_memory(config).total


def test_a_short_window_is_estimated_exactly() -> None:
    config = compose_config(["model=e42", *SMALL, "train.chunk_size=16"])
    assert quick_memory(config) == estimate_memory(config).total


def test_a_step_in_bf16_has_a_copy_of_the_head() -> None:
    tokens = ["data.tokenizer=bpe", "data.vocab_size=8192", "train.chunk_size=16"]
    totals = {
        precision: estimate_memory(
            compose_config(["model=e42", *SMALL, *tokens, f"train.precision={precision}"])
        ).total
        for precision in ("fp32", "bf16")
    }
    assert totals["bf16"] - totals["fp32"] == 2 * 8192 * 256
