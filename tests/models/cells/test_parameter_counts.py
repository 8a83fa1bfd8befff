"""Parameters of every layer, option by option, against formulas that do not ask the layers."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import elman.layers
from elman.base.errors import UserError
from elman.config.compose import compose_config
from elman.models.build import build_model
from elman.models.cells import registry
from elman.models.cells.registry import Cell, Option
from tests.conf.count_formulas import FORMULAS, layer_params

DIM = 10
# No two widths are equal.
SMALL = {"expansion": 1.5, "n_heads": 3, "n_state": 8}
SMALL_OF: dict[str, dict[str, int]] = {
    **{name: {"head_dim": 4} for name in ("deltaproduct", "fla_gdn", "gdn2", "kda")},
    "llama": {"head_dim": 4, "mlp_width": 7},
    "mamba2": {"head_dim": 5},
    "mamba3": {"head_dim": 5},
    "rwkv7": {"head_dim": 5},
}
NUMBERS: dict[str, tuple[float, ...]] = {
    # 11.25 channels, truncated.
    "expansion": (1.0, 1.125, 2.0),
    "n_heads": (1, 2),
    "n_state": (0, 16),
    "d_conv": (3,),
    "rank": (2, 3),
    **dict.fromkeys(("decay_rank", "gate_rank", "a_rank"), (3,)),
    "n_householder": (1, 3),
    "key_width": (5,),
    "n_slots": (5,),
    "mlp_width": (5,),
    "head_dim": (2, 3),
    "context": (3,),
}
cells = pytest.mark.parametrize("cell", registry.cells().values(), ids=registry.cells())


def values(name: str, option: Option) -> tuple[Any, ...]:
    """Return other values of an option; of a number, those that could change a size."""
    if isinstance(option.default, bool):
        return (not option.default,)
    if option.choices:
        return tuple(choice for choice in option.choices if choice != option.default)
    return tuple(v for v in NUMBERS.get(name, ()) if v >= (option.minimum or 0))


def changes(cell: Cell) -> Iterator[dict[str, Any]]:
    """Yield the value of one option, with those of others without which nothing reads it."""
    for name, option in cell.options.items():
        needed = {n: w[0] if isinstance(w, tuple) else w for n, w in option.needs.items()}
        for value in values(name, option):
            yield {name: value} | {n: w for n, w in needed.items() if w != cell.options[n].default}


def built(cell: Cell, given: dict[str, Any]) -> int:
    """Count the parameters of a layer, and hold them against the formula."""
    small = {name: value for name, value in SMALL.items() if name in cell.options}
    small |= SMALL_OF.get(cell.name, {})
    # Some values refuse a size that nothing then reads.
    if given.get("conv_mode") == "post" or given.get("tie_kv"):
        del small["expansion"]
    given = small | given
    layer = getattr(elman.layers, cell.layer.partition(":")[2])(DIM, **given, device="meta")
    count = sum(parameter.numel() for parameter in layer.parameters())
    assert count == layer_params(cell.name, DIM, cell.parse_options(DIM, given)), given
    return count


def test_every_cell_has_a_formula() -> None:
    assert set(FORMULAS) == set(registry.cells())


@cells
def test_every_option_counts_by_the_formula_and_says_whether_it_is_a_size(cell) -> None:
    plain = built(cell, {})
    for given in changes(cell):
        name = next(iter(given))
        try:
            count = built(cell, given)
        except UserError:  # channels that are no whole heads of a given width, or number
            assert "head_dim" in cell.options or cell.name == "slstm"
            continue
        if count != plain:
            assert any(cell.options[one].size for one in given), name


@cells
def test_options_that_combine_count_by_the_formula(cell) -> None:
    for one, other in itertools.combinations(changes(cell), 2):
        if any(one[name] != other[name] for name in one.keys() & other.keys()):
            continue
        # The pairs that a cell refuses are other tests' business.
        with contextlib.suppress(UserError):
            built(cell, one | other)


@pytest.mark.parametrize(("name", "matrices"), [("MinGRU", 3), ("MinLSTM", 4)])
def test_an_expansion_that_truncates_to_dim_still_adds_a_projection(name, matrices) -> None:
    layer = getattr(elman.layers, name)(DIM, expansion=1.05, device="meta")
    assert sum(parameter.numel() for parameter in layer.parameters()) == matrices * DIM * DIM


# Other sizes of E14 with about its published 20.3M (matrix-state specification 14): dim, depth,
# n_state, expansion, parameters.
E14_SIZES = [
    (448, 18, 128, 1.0, 20_271_680),
    (384, 14, 96, 1.5, 20_250_624),
    (320, 13, 96, 2.0, 20_339_776),
]


@pytest.mark.parametrize(("dim", "depth", "n", "expansion", "count"), E14_SIZES)
def test_e14_has_other_sizes_of_its_published_count(dim, depth, n, expansion, count) -> None:
    size = {"dim": dim, "depth": depth, "n_state": n, "expansion": expansion}
    given = [f"model.{key}={value}" for key, value in size.items()]
    config = compose_config(["model=e14", *given, "model.allow_unaligned=true"]).model
    assert config.expected_params is None
    assert build_model(config, device="meta").num_params() == count
