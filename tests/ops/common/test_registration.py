"""Steps that another package adds to an engine."""

from __future__ import annotations

import pytest
import torch

from elman.base.errors import UserError
from elman.ops.channel.steps import STEPS as CHANNEL
from elman.ops.common.registration import register_step
from elman.ops.dense.steps import STEPS as DENSE
from elman.ops.matrix_state.op import recurrence
from elman.ops.matrix_state.steps import STEPS, Step


def test_a_matrix_state_step_of_another_package_runs(monkeypatch) -> None:
    def leak(s_snv, r_s1v, *, k, v, decay):
        return torch.addcmul(decay * s_snv, k, v - r_s1v)

    mine = Step(leak, parameters=frozenset({"decay"}))
    # Undoes the registration: the table is that of the whole process.
    monkeypatch.setitem(STEPS, "leak", mine)
    del STEPS["leak"]
    register_step(STEPS, "leak", mine)
    torch.manual_seed(0)
    draws = {name: torch.randn(2, 3, 2, 4, dtype=torch.float64) for name in ("q", "k", "v")}
    start = torch.randn(2, 2, 4, 4, dtype=torch.float64)
    decay = {"decay": torch.full((1,), 0.5, dtype=torch.float64)}
    arguments = {"nonlinearity": "tanh", "backend": "reference"}
    _, last = recurrence("leak", draws, decay, start, **arguments)
    state = start
    for k, v in zip(draws["k"].unbind(1), draws["v"].unbind(1), strict=True):
        read = (state @ k.unsqueeze(-1)).squeeze(-1)
        state = torch.tanh(0.5 * state + (v - read).unsqueeze(-1) * k.unsqueeze(-2))
    torch.testing.assert_close(last, state)


@pytest.mark.parametrize(
    ("steps", "name"),
    [(CHANNEL, "e34"), (STEPS, "delta"), (DENSE, "tanh")],
    ids=["channel", "matrix_state", "dense"],
)
def test_a_name_that_is_taken_is_refused(steps, name) -> None:
    before = dict(steps)
    with pytest.raises(UserError, match=f"step {name}: the engine has one of that name"):
        register_step(steps, name, steps[name])
    assert steps == before
