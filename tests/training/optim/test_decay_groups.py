"""Which parameters of real cells decay: matrices that multiply vectors, and nothing else."""

from __future__ import annotations

import pytest

from elman.config.compose import compose_config
from elman.models.build import build_model
from elman.training.optim.optimizers import TrainingOptimizer

MATRICES = {"embedding", "in_proj", "out_proj", "cell_proj", "recurrent", "input"}
MODELS = {
    "e88": ["model=e88f_h4", "model.use_conv=true", "model.use_value_residual=true"],
    "e75": ["model=e75h4n16", "model.use_conv=true"],
    "e1": ["model=e1", "model.use_conv=true"],
    "e42": ["model=e42"],
}


@pytest.mark.parametrize("overrides", MODELS.values(), ids=MODELS)
def test_only_matrices_decay(overrides: list[str]) -> None:
    config = compose_config([*overrides, "model.dim=128", "model.depth=1"])
    model = build_model(config.model, device="meta")
    groups = TrainingOptimizer(config.optim, model).state_dict()["optimizer"]["param_groups"]
    decayed = next(group["params"] for group in groups if group["weight_decay"] > 0)
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = [name for name, p in trained if name.split(".")[-1] in MATRICES]
    assert len(decayed) == len(matrices)
    # Indices run over the decayed parameters first, in the order of the model.
    found = [name for name, p in trained if p.ndim == 2 and not hasattr(p, "no_weight_decay")]
    assert found == matrices
