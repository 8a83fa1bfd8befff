"""Parameters of every layer, option by option, against formulas that do not ask the layers."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import pytest

import elman.layers
from elman.compose import compose_config
from elman.errors import UserError
from elman.models import registry
from elman.models.build import build_model
from elman.models.registry import Cell, Option
from tests.conf.count_formulas import FORMULAS, layer_params

DIM = 10
# No two widths are equal.
SMALL = {"expansion": 1.5, "n_heads": 3, "n_state": 8}
NUMBERS: dict[str, tuple[float, ...]] = {
    # 11.25 channels, truncated.
    "expansion": (1.0, 1.125, 2.0),
    "n_heads": (1, 2),
    "n_state": (0, 16),
    "d_conv": (3,),
    "rank": (2, 3),
    "n_slots": (5,),
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
        if built(cell, given) != plain:
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


# Counts printed in logs (vector-state specification 8), at sizes without a file of their own:
# model, dim, depth, expansion, wrapper, parameters.
PRINTED = [
    ("e0", 512, 19, 1.5, "legacy_ln", 48_742_912),
    ("e0", 1280, 6, 1.0, "rms", 49_504_000),
    ("e4", 512, 25, 1.5, "legacy_ln", 50_941_696),
    ("e4", 512, 17, 2.0, "legacy_ln", 49_187_840),
    ("e4", 512, 10, 3.0, "legacy_ln", 49_954_816),
    ("e4", 512, 7, 4.0, "legacy_ln", 53_368_832),
    ("e23", 512, 17, 1.5, "rms", 50_288_384),
    ("e23", 512, 32, 1.0, "legacy_ln", 50_512_896),
    ("e23", 1024, 8, 1.0, "legacy_ln", 50_620_416),
    ("e33", 1280, 6, 1.0, "rms", 39_665_920),
    ("e33", 768, 23, 1.5, "rms", 101_986_176),
    ("e34", 1280, 6, 1.0, "rms", 29_843_200),
    ("e37v2", 1280, 6, 1.0, "rms", 29_835_520),
    ("e39", 1280, 6, 1.0, "rms", 29_827_840),
    ("e56", 768, 19, 1.5, "rms", 101_093_760),
    ("e59", 768, 32, 1.5, "rms", 99_349_280),
    ("e60", 768, 23, 1.5, "rms", 101_986_199),
    ("mingru", 1984, 6, 1.0, "legacy_ln", 47_770_752),
    ("mingru", 2752, 24, 1.0, "legacy_ln", 364_370_304),
    ("minlstm", 1280, 6, 1.0, "legacy_ln", 29_836_800),
    ("minlstm", 1984, 6, 1.0, "legacy_ln", 71_388_288),
    ("minlstm", 2304, 24, 1.0, "legacy_ln", 382_910_976),
]


@pytest.mark.parametrize(("name", "dim", "depth", "expansion", "wrapper", "count"), PRINTED)
def test_printed_counts(name, dim, depth, expansion, wrapper, count) -> None:
    size = {"dim": dim, "depth": depth, "expansion": expansion, "wrapper": wrapper}
    given = [f"model.{key}={value}" for key, value in size.items()]
    config = compose_config([f"model={name}", *given, "model.allow_unaligned=true"]).model
    assert config.expected_params is None
    assert build_model(config, device="meta").num_params() == count


# Runs over n_state in matrix-state specification 9, in millions.
SCAN = {1: "95.0", 2: "95.2", 4: "95.7", 8: "96.5", 16: "98.2"}
SCAN |= {32: "101.7", 48: "105.1", 64: "108.6", 96: "115.4"}


@pytest.mark.parametrize("n", SCAN)
def test_the_runs_over_n_state_have_their_printed_counts(n) -> None:
    config = compose_config(["model=e74_1536x20_e2"]).model
    options = config.options | {"n_state": n}
    sized = config.model_copy(update={"options": options, "expected_params": None})
    assert f"{build_model(sized, device='meta').num_params() / 1e6:.1f}" == SCAN[n]
