"""The shapes of one size."""

from __future__ import annotations

import pytest

from elman.base.errors import UserError
from elman.config.compose import compose_config
from elman.models.counts import count_params
from elman.sections.tune import ShapeSpace
from elman.tuning.shapes import check_shapes, shapes_of
from elman.tuning.space import overrides_of

SPACE = ShapeSpace(depth=[0.5, 2.0], options={"n_state": [0.5, 1, 2], "n_heads": [0.5, 1, 2]})


@pytest.mark.parametrize("model", ["e88_tiny", "e88f_h32n16", "llama"])
def test_every_shape_has_the_size_of_the_model(model: str) -> None:
    config = compose_config([f"model={model}"]).model
    shapes = shapes_of(config, "auto", SPACE, 0.02)
    own = count_params(config, "auto")
    assert len(set(shapes)) == len(shapes) >= 2
    for shape in shapes[:: max(1, len(shapes) // 4)]:
        resized = compose_config([f"model={model}", *overrides_of(shape)]).model
        assert resized.dim % 128 == 0
        assert abs(count_params(resized, "auto") - own) <= 0.02 * own


def test_the_models_own_shape_is_among_them_and_names_only_sizes_that_it_has() -> None:
    config = compose_config(["model=llama"]).model
    shapes = shapes_of(config, "auto", SPACE, 0.01)
    own = next(one for one in shapes if one.startswith(f"depth={config.depth} dim={config.dim}"))
    assert "n_state" not in own


def test_a_model_without_another_shape_is_refused() -> None:
    config = compose_config(["model=e1_1280x6"]).model
    narrow = ShapeSpace(depth=[1.0, 1.0])
    shapes = shapes_of(config, "auto", narrow, 0.001)
    assert shapes == (f"depth={config.depth} dim={config.dim}",)
    with pytest.raises(UserError, match=r"e1: no other shape of e1_1280x6 has its size"):
        check_shapes("e1", config, shapes, 0.001)
