"""``mode=solve``: the nearest size, against formulas; what it prints, and that it can be pasted."""

from __future__ import annotations

import itertools
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

from elman.base.errors import UserError
from elman.config.compose import compose_config
from elman.models.build import build_model
from elman.models.counts import SIZES, count_params, own_size
from elman.models.shape_search import Shapes, fit
from elman.models.shape_search import search as search_by
from elman.models.sizing import Solution
from elman.models.sizing import solve as solve_by
from elman.report.tables.standard import STANDARD, standard_rows
from elman.sections.model import ModelConfig
from elman.sections.solve import PARAMS
from elman.training.flops import flops_per_byte
from elman.training.memory.estimate import estimate_memory
from tests.conf.count_formulas import model_params
from tests.shipped import shipped

Elman = Callable[..., tuple[int, str, str]]


def model(*overrides: str) -> ModelConfig:
    """Return the composed model."""
    return compose_config(list(overrides)).model


def solve(
    config: ModelConfig, params: int, over: Any = "dim", backend: str = "auto", **listener: Any
) -> Solution:
    """Return the size with the nearest number of parameters."""
    return solve_by(config, partial(count_params, backend=backend), params, over, **listener)


def search(config: ModelConfig, params: int, over: Any, backend: str = "auto") -> Shapes:
    """Return the best shapes for a number of parameters."""
    return search_by(config, partial(count_params, backend=backend), params, over)


def test_the_vocabulary_of_the_data_is_counted() -> None:
    """V d + 20 (3 d d + 2 d d + 2 d) + d, where a task of two symbols has a V of 2."""
    own_size = ("model=e1", "model.expansion=1.0")
    task = model("mode=solve", *own_size, "data=parity", "solve.params=1M")
    assert solve(task, 1_000_000).nearest.count == 3 * 128 + 20 * (5 * 128**2 + 2 * 128)
    own = model(*own_size).with_vocabulary(50281)
    assert solve(own, 9_000_000).nearest.config.dim == 128
    assert solve(own, 9_000_000).nearest.count == 50282 * 128 + 20 * (5 * 128**2 + 2 * 128)


@cache
def one_of_each_cell() -> dict[str, ModelConfig]:
    """Return the first model of every cell, two layers deep."""
    found: dict[str, ModelConfig] = {}
    for listed in shipped():
        if listed.config is not None and not listed.config.allow_unaligned:
            short = listed.config.model_copy(update={"depth": 2, "expected_params": None})
            found.setdefault(short.cell, short)
    return found


@pytest.mark.parametrize("cell", one_of_each_cell())
def test_the_count_of_a_size_finds_that_size(cell: str) -> None:
    config = one_of_each_cell()[cell]
    params = build_model(config, device="meta").num_params()
    found = solve(config, params)
    assert (found.nearest.config.dim, found.nearest.count, found.reached) == (
        config.dim,
        params,
        True,
    )
    assert found.nearest.error == 0
    assert found.below is None or found.below.count < params
    assert found.above is not None
    assert found.above.count > params


ROUND_TRIPS = [
    ("slstm", "n_heads", 101_396_736),
    ("kda", "n_heads", 99_851_048),
    ("gdn2", "n_heads", 100_725_509),
    ("minlstm", "expansion", None),
    ("e4_512x25_e1.5_legacy", "rank", None),
    ("lstm_384x4_e1.1875", "expansion", None),
    ("mamba2n64_672x18_legacy", "dim", None),
    ("e75h4n32", "n_state", None),
]


@pytest.mark.parametrize(("name", "over", "params"), ROUND_TRIPS)
def test_the_count_of_a_model_finds_the_models_own_shape(
    name: str, over: Any, params: int | None
) -> None:
    """Also where more heads have fewer parameters, and where the size is on no grid."""
    config = model(f"model={name}")
    found = solve(config, params or build_model(config, device="meta").num_params(), over)
    assert (found.nearest.size, found.nearest.error) == (own_size(config, over), 0)
    assert found.reached


def test_a_count_behind_a_fall_is_found() -> None:
    """MinGRU has fewer parameters at 1.0 than at 0.75: there its width needs no projection."""
    found = solve(model("model=mingru"), 32_360_832, "expansion")
    assert (found.nearest.size, found.nearest.error) == (1.0, 0)
    assert found.below is not None
    assert found.below.count > found.nearest.count


@pytest.mark.parametrize(
    ("name", "over"),
    [
        ("slstm", ("n_heads", "depth")),
        ("slstm", ("dim", "n_heads")),
        ("kda", ("dim", "n_heads")),
        ("mingru", ("expansion", "depth")),
        ("e67lr", ("dim", "rank")),
    ],
)
def test_the_count_of_a_model_finds_the_models_own_shape_among_several_sizes(
    name: str, over: Any
) -> None:
    config = model(f"model={name}")
    found = search(config, build_model(config, device="meta").num_params(), over)
    assert found.best[0].sizes == {size: own_size(config, size) for size in over}
    assert (found.best[0].error, found.reached) == (0, True)


@pytest.mark.slow
@pytest.mark.parametrize("over", SIZES)
def test_every_model_is_found_by_its_count_over_every_size(over: Any) -> None:
    missed = []
    for listed in shipped():
        config = listed.config
        assert config is not None
        if over not in ("dim", "depth", *config.options):
            continue
        found = solve(config, build_model(config, device="meta").num_params(), over)
        if (found.nearest.size, found.nearest.error) != (own_size(config, over), 0):
            missed.append((config.name, own_size(config, over), found.nearest.size))
    assert missed == []


def test_a_rule_of_the_cell_does_not_keep_the_search_from_its_end() -> None:
    """0 heads, a rule of Gated DeltaNet, may have more parameters than 1 head."""
    model = compose_config(["model=fla-gdn", "model.depth=1", "model.head_dim=32"]).model

    def count(one: ModelConfig) -> float:
        return one.depth * (one.options["n_heads"] or 50)

    seen: list[int] = []
    found = solve_by(model, count, 40, "n_heads", seen.append)
    assert found.nearest.size == 40
    assert len(seen) < 100


def test_progress_counts_the_sizes_that_were_looked_at() -> None:
    seen: list[int] = []
    solve(model("model=e1"), 10**8, "expansion", seen=seen.append)
    assert seen == list(range(1, len(seen) + 1))
    assert len(seen) == 64


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("solve.params=1e20", "solve.params=1e20: more than 1,000,000,000,000, the most that is"),
        ("solve.params=100M solve.depth=100000000", "solve.depth=100000000: "),
        ("solve.params=100M model.depth=2000", "model.depth=2000: mode=solve builds at most"),
        (
            "solve.params=100M solve.ranks=1000000",
            "solve.ranks=1000000: cannot share the rows of train.batch_size=32 equally; "
            "use solve.ranks=32",
        ),
        ("solve.params=100M solve.ranks=5", "solve.ranks=5: cannot share the rows"),
    ],
)
def test_an_absurd_target_is_refused_before_anything_is_counted(
    elman_here: Elman, typed: str, said: str
) -> None:
    status, output, errors = elman_here("mode=solve", "model=e1", *typed.split())
    assert (status, output) == (2, "")
    assert errors.startswith(f"elman: error: {said}")
    assert errors.count("\n") == 1


def test_of_several_sizes_an_answer_far_from_the_target_is_not_reached(elman_here: Elman) -> None:
    """Counts lie on both sides of the target, and none within 5 % of it."""
    typed = ("model=e67lr", "model.depth=1", "train.chunk_size=8", "solve.over=[dim,rank]")
    smallest = search(model(*typed[:2]), 1, ("dim", "rank")).best[0].count
    status, output, _ = elman_here("mode=solve", *typed, f"solve.params={int(smallest / 1.39)}")
    assert status == 1
    assert "not reached with these values of dim, rank: the nearest are" in output


def test_the_largest_size_that_fits_is_the_one_with_the_most_parameters(elman_here: Elman) -> None:
    """More heads of sLSTM have fewer parameters: a search by halves found none."""
    typed = ("model=slstm", "solve.over=n_heads", "train.batch_size=1", "train.chunk_size=8")
    status, output, _ = elman_here("mode=solve", *typed, "solve.gpu_gb=80")
    assert status == 0
    assert re.search(r"^ > +│ +1 │", output, re.M)


@pytest.mark.parametrize(
    ("name", "over", "target"),
    [
        ("e75h4n32", "dim", 100_000_000),
        ("e75h4n32", "depth", 55_000_000),
        ("e75h4n32", "n_heads", 130_000_000),
        ("e75h4n32", "n_state", 90_000_000),
        ("e88f_h32n16", "n_heads", 100_000_000),
        ("e66", "dim", 1_300_000_000),
        ("cudalstm_384x20_legacy", "depth", 20_000_000),
        ("e42", "dim", 1),
        ("e42", "dim", 10**12),
    ],
)
def test_no_other_size_is_nearer_by_the_formula(name: str, over: Any, target: int) -> None:
    config = model(f"model={name}")

    def params(size: int) -> int:
        options = dict(config.options)
        sizes = {"dim": config.dim, "depth": config.depth}
        (sizes if over in sizes else options)[over] = size
        return model_params(config.cell, sizes["dim"], sizes["depth"], config.wrapper, options)

    nearest = min(SIZES[over], key=lambda size: abs(params(size) - target))
    found = solve(config, target, over)
    for sized, size in (
        (found.below, nearest - SIZES[over].step),
        (found.nearest, nearest),
        (found.above, nearest + SIZES[over].step),
    ):
        if size in SIZES[over]:
            assert sized is not None
            assert (sized.size, sized.count) == (size, params(size))
            assert sized.error == pytest.approx(params(size) / target - 1)
        else:
            assert sized is None
    assert found.reached == (1 < target < 10**12)


def test_a_rank_is_a_size_and_no_larger_than_dim() -> None:
    config = model("model=e4")

    def params(rank: int) -> int:
        options = dict(config.options) | {"rank": rank}
        return model_params("e4", config.dim, config.depth, config.wrapper, options)

    found = solve(config, 100_000_000, "rank")
    ranks = range(8, config.dim + 1, 8)
    assert found.nearest.size == min(ranks, key=lambda rank: abs(params(rank) - 10**8))
    assert found.nearest.count == params(int(found.nearest.size))
    widest = solve(config, 10**9, "rank")
    assert (widest.nearest.size, widest.above, widest.reached) == (config.dim, None, False)


def test_an_expansion_is_a_size_in_quarters() -> None:
    found = solve(model("model=e1"), 100_000_000, "expansion")
    assert found.below is not None
    assert found.above is not None
    assert (found.below.size, found.nearest.size, found.above.size) == (1.5, 1.75, 2.0)
    assert found.nearest.config.options["expansion"] == 1.75


OVER = {
    "e4": ("dim", "rank"),
    "e4_512x17_e2_legacy": ("dim", "depth", "rank"),
    "e88f_h32n16": ("dim", "depth"),
    "e75h4n32": ("dim", "n_heads", "n_state"),
    "e1": ("expansion", "depth"),
}


@pytest.mark.parametrize("name", OVER)
def test_several_sizes_give_the_best_few(name: str) -> None:
    """What is printed is counted, aligned, sorted by the rule, and no nearer one was missed."""
    config, target, over = model(f"model={name}"), 100_000_000, OVER[name]
    found = search(config, target, over)
    assert found.reached
    assert 1 <= len(found.best) <= 5
    for one in found.best:
        assert tuple(one.sizes) == over
        assert one.count == build_model(one.config, device="meta").num_params()
        sizes = {"dim": one.config.dim, "depth": one.config.depth, **one.config.options}
        assert {size: sizes[size] for size in over} == one.sizes
        assert one.config.dim % 128 == 0
        assert abs(one.error) <= 0.05
    assert [one.rank for one in found.best] == sorted(one.rank for one in found.best)
    assert abs(found.best[0].error) <= 0.005
    again = search(config, target, tuple(reversed(over)))
    assert [one.config for one in again.best] == [one.config for one in found.best]


def test_dim_and_rank_of_e4_are_those_of_every_pair_that_there_is() -> None:
    config, target = model("model=e4"), 100_000_000

    def rank_of(pair: tuple[int, int]) -> tuple[float, float, float]:
        options = dict(config.options) | {"rank": pair[1]}
        params = model_params("e4", pair[0], config.depth, config.wrapper, options)
        off = abs(params - target) / target
        return (0 if off <= 0.005 else off, abs(math.log2(pair[0] / config.dim)), off)

    dims = range(128, 2048 + 1, 128)
    pairs = [(dim, rank) for dim in dims for rank in range(8, dim + 1, 8)]
    best = search(config, target, ["dim", "rank"]).best[0]
    assert (best.sizes["dim"], best.sizes["rank"]) == min(pairs, key=rank_of)


@pytest.mark.parametrize(
    ("counts", "target", "place"),
    [
        ([1, 2, 3, 4], 3, 2),
        ([1, 2, 3, 4], 9, 3),
        ([5, 6], 1, 0),
        ([0, 10], 5, 0),
        ([0, 10], 6, 1),
        ([None, 1, None, None, 9, None], 4, 1),
        ([None, 1, None, None, 9, None], 8, 4),
        ([0, 1, 4, 9, 16, 25, 36, 49, 1000], 37, 6),
        ([0, *[None] * 30, 500, 1000], 499, 31),
        ([None, None], 3, None),
    ],
)
def test_a_fit_is_the_nearest_of_all(counts, target: int, place: int | None) -> None:
    assert fit(counts.__getitem__, target, len(counts)) == place


def test_several_sizes_out_of_reach_give_the_nearest() -> None:
    config = model("model=e4")
    for target, near in ((1000, min), (10**12, max)):
        found = search(config, target, ["dim", "rank"])
        assert not found.reached
        assert len(found.best) == 1
        assert found.best[0].count == near(found.best[0].count, target, key=lambda n: -abs(n))
        assert found.best[0].config.dim == (128 if target == 1000 else 16384)


def test_sizes_that_no_combination_of_the_cell_takes_say_why() -> None:
    with pytest.raises(UserError, match=r"kernels\.backend=triton"):
        search(model("model=e4"), 10**8, ["depth", "expansion"], backend="triton")


@pytest.mark.parametrize("over", ["depth", "dim"])
def test_of_two_equally_near_sizes_the_smaller_is_taken(over: Any) -> None:
    at_first = solve(model("model=e42"), 10**6, over)
    assert at_first.above is not None
    counts = (at_first.nearest.count, at_first.above.count)
    assert sum(counts) % 2 == 0
    tie = solve(model("model=e42"), sum(counts) // 2, over)
    assert abs(tie.nearest.error) == abs(at_first.above.count / (sum(counts) // 2) - 1)
    assert tie.nearest.count == counts[0]
    assert tie.above is not None
    assert tie.above.count == counts[1]
    # One parameter more, and the larger is nearer.
    assert solve(model("model=e42"), sum(counts) // 2 + 1, over).nearest.count == counts[1]


def test_sizes_that_the_cell_refuses_are_left_out() -> None:
    # Blocks of eight: a state of 127 would fit better.
    found = solve(model("model=e74_blockdiag", "model.n_state=8"), 117_200_000, "n_state")
    assert found.below is not None
    assert found.above is not None
    assert (found.below.size, found.nearest.size, found.above.size) == (120, 128, 136)
    half = solve(model("model=e88_tiny", "model.expansion=0.5"), 500_000, "n_state")
    assert half.nearest.size % 2 == 0


def test_a_model_that_cannot_be_built_at_all_says_why() -> None:
    with pytest.raises(UserError, match=r"kernels\.backend=triton"):
        solve(model("model=e60"), 10**8, backend="triton")


@pytest.mark.parametrize(
    ("typed", "params"),
    [
        ("100M", 10**8),
        ("100m", 10**8),
        ("1.3B", 1_300_000_000),
        ("1g", 10**9),
        ("50k", 50_000),
        ("100_000_000", 10**8),
        ("1e8", 10**8),
        (100_000_000, 10**8),
        (1e8, 10**8),
        ("0.1k", 100),
    ],
)
def test_a_number_of_parameters_as_people_type_it(typed: object, params: int) -> None:
    assert PARAMS.parse(typed) == params


@pytest.mark.parametrize("typed", ["100X", "M", "1,3B", "-5", "0", "0.4", "", "nan", True, "1e8e"])
def test_other_texts_are_no_number_of_parameters(typed: object) -> None:
    with pytest.raises(UserError, match=r"solve\.params=.*expected a number of parameters"):
        PARAMS.parse(typed)


@pytest.mark.parametrize(
    ("typed", "kept", "found"),
    [
        ("model=e75h4n32 solve.params=100M solve.depth=20", "model=e75h4n32", ""),
        ("model=e75h4n32 solve.params=50M", "model=e75h4n32", "model.dim=1280"),
        ("model=e1 solve.params=2M solve.depth=2", "model=e1", "model.dim=256 model.depth=2"),
        (
            "solve.params=1e7 model.expansion=1.0 model=e42 train.batch_size=2",
            "model.expansion=1.0 model=e42 train.batch_size=2",
            "model.dim=384",
        ),
        ("solve.params=1M solve.over=n_heads", "model=e88_tiny", "model.n_heads=22"),
        ("solve.params=1M solve.over=n_state", "model=e88_tiny", "model.n_state=45"),
        ("solve.params=1M solve.over=depth", "model=e88_tiny", "model.depth=6"),
        ("solve.params=1M solve.over=[depth]", "model=e88_tiny", "model.depth=6"),
    ],
)
def test_the_printed_command_trains_the_printed_model(
    elman_here: Elman, typed: str, kept: str, found: str
) -> None:
    status, output, errors = elman_here("mode=solve", *typed.split(), "train.chunk_size=8")
    assert (status, errors) == (0, "")
    (command,) = re.findall(r"^train it: (.+)$", output, re.M)
    assert command == f"elman {kept} train.chunk_size=8 {found}".strip()
    (printed,) = re.findall(r"^ *> *│ *\d+ *│ *([\d,]+) *│", output, re.M)
    config = compose_config(shlex.split(command)[1:]).model
    assert f"{build_model(config, device='meta').num_params():,}" == printed


def test_the_best_of_several_sizes_is_offered(elman_here: Elman) -> None:
    typed = ("mode=solve", "model=e4", "solve.params=100M", "train.chunk_size=8")
    status, output, errors = elman_here(*typed, "solve.over=[dim,rank]")
    assert (status, errors) == (0, "")
    lines = output.splitlines()
    assert lines[0] == "e4: dim, rank for 100,000,000 parameters"
    assert any(line.startswith("best first: those within 0.5% of the target") for line in lines)
    table = [[cell.strip() for cell in line.split("│")] for line in lines if "│" in line]
    assert table[0] == [">", "640", "352", "100,145,280", "+0.15%", "5,120", "-"]
    (command,) = re.findall(r"^train it: (.+)$", output, re.M)
    assert command == "elman model=e4 train.chunk_size=8 model.rank=352"
    config = compose_config(shlex.split(command)[1:]).model
    assert build_model(config, device="meta").num_params() == 100_145_280
    _, output, _ = elman_here("-m", *typed, "solve.over=[dim,rank],depth")
    assert "dim=640 rank=352" in output
    assert "depth=22" in output


def test_a_model_of_the_users_own_is_solved_and_offered_as_it_was_found(
    elman_here: Elman, tmp_path: Path
) -> None:
    models = tmp_path / "my models" / "model"
    models.mkdir(parents=True)
    (models / "own.yaml").write_text("defaults: [/cell/e1@_here_, _self_]\ndim: 384\ndepth: 3\n")
    typed = ["model=own", "solve.params=1M", "train.chunk_size=8"]
    status, output, _ = elman_here("--config-dir", "my models", "mode=solve", *typed)
    assert status == 0
    offered = "elman --config-dir 'my models' model=own train.chunk_size=8 model.dim=256"
    assert f"train it: {offered}" in output.splitlines()
    assert elman_here(*shlex.split(offered)[1:], "--cfg", "job")[0] == 0
    place = f"hydra.searchpath=[file://{models.parent}]"
    _, output, _ = elman_here("mode=solve", *typed, place)
    assert shlex.join([place, "model.dim=256"]) in output


def test_the_memory_is_that_of_the_run_that_is_offered(elman_here: Elman) -> None:
    """It will run on kernels, which keep less than the reference's loop."""
    size = ["model=e88_tiny", "train.device=cpu", "train.batch_size=64", "train.chunk_size=256"]
    _, said, _ = elman_here("mode=solve", *size, "solve.params=401184")
    (printed,) = re.findall(r"memory of a training step: ([\d.]+) GiB", said)

    def estimate(backend: str) -> float:
        config = compose_config([*size, f"kernels.backend={backend}"])
        return estimate_memory(config).total / 2**30

    assert float(printed) == pytest.approx(estimate("cpu"), abs=0.051)
    assert estimate("reference") > estimate("cpu") + 0.2


@pytest.mark.parametrize("cell", one_of_each_cell())
def test_the_operations_of_a_deep_model_find_its_depth(cell: str) -> None:
    """They are counted with one and two layers; the answer is counted whole."""
    config, train = one_of_each_cell()[cell], compose_config(["train.chunk_size=16"]).train
    deep = config.model_copy(update={"depth": 7})
    found = solve_by(
        config, lambda one: flops_per_byte(one, train), round(flops_per_byte(deep, train)), "depth"
    )
    assert found.nearest.size == 7
    assert abs(found.nearest.error) < 1e-6


def test_a_target_of_operations_gives_the_size_that_costs_them(elman_here: Elman) -> None:
    """A layer of E42 projects in and out, 2 dim^2 each, and applies its W, 4 dim^2, twice."""
    typed = ("model=e42", "train.chunk_size=8")
    each = 3 * 2 * (3 * 12 * 512**2 + 256 * 512)
    status, output, errors = elman_here(
        "mode=solve", *typed, f"solve.flops={each}", "solve.depth=3"
    )
    assert (status, errors) == (0, "")
    lines = output.splitlines()
    assert lines[0] == f"e42: dim nearest to {each:,} FLOPs a byte"
    assert [cell.strip() for cell in lines[1].split("┃")] == [
        "",
        "dim",
        "parameters",
        "FLOPs a byte",
        "off",
        "state bytes",
        "per byte",
    ]
    table = [[cell.strip() for cell in line.split("│")] for line in lines if "│" in line]
    found = model(*typed, "model.dim=512", "model.depth=3")
    params = build_model(found, device="meta").num_params()
    assert [">", "512", f"{params:,}", f"{each:,}", "+0.00%", "4,096", "-"] in table
    assert f"train it: elman {' '.join(typed)} model.dim=512 model.depth=3" in lines


def test_a_sweep_over_targets_of_operations_names_their_unit(
    elman_here: Elman,
) -> None:
    typed = ("-m", "mode=solve", "model=e42", "train.chunk_size=8", "solve.over=depth")
    _, output, errors = elman_here(*typed, "solve.flops=20M,40M")
    assert errors == ""
    rows = [[cell.strip() for cell in line.split("│")] for line in output.splitlines()]
    wanted = [row[2] for row in rows if len(row) > 1][-2:]
    assert wanted == ["20,000,000 FLOPs a byte", "40,000,000 FLOPs a byte"]


def test_several_sizes_are_found_for_a_number_of_operations(elman_here: Elman) -> None:
    typed = ("mode=solve", "model=e4", "model.depth=2", "train.chunk_size=8")
    status, output, errors = elman_here(*typed, "solve.flops=20M", "solve.over=[dim,rank]")
    assert (status, errors) == (0, "")
    assert output.splitlines()[0] == "e4: dim, rank for 20,000,000 FLOPs a byte"
    (command,) = re.findall(r"^train it: (.+)$", output, re.M)
    config = compose_config(shlex.split(command)[1:])
    assert flops_per_byte(config.model, config.train) == pytest.approx(20e6, rel=0.005)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            "solve.flops=1G solve.params=100M",
            "solve.flops: not read together with solve.params; drop one of them",
        ),
        (
            "solve.flops=cheap",
            "solve.flops=cheap: expected a number of FLOPs a byte, as in 600M, 1.3B or 1e9",
        ),
        ("solve.flops=1e20", "solve.flops=1e20: more than 10,000,000,000,000, the most that is "),
    ],
)
def test_a_target_of_operations_that_cannot_be_meant_is_refused(
    elman_here: Elman, typed: str, said: str
) -> None:
    status, output, errors = elman_here("mode=solve", "model=e1", *typed.split())
    assert (status, output) == (2, "")
    assert errors.startswith(f"elman: error: {said}")
    assert errors.count("\n") == 1


@pytest.mark.parametrize(
    ("params", "nearest", "lines"), [("1K", 128, 2), ("500B", 16384, 2)], ids=["1K", "500B"]
)
def test_a_target_out_of_reach_says_so_and_gives_the_nearest(
    elman_here: Elman, params: str, nearest: int, lines: int
) -> None:
    status, output, errors = elman_here(
        "mode=solve", "model=e42", f"solve.params={params}", "train.chunk_size=8"
    )
    assert (status, errors) == (1, "")
    assert "not reached with dim of 128 to 16384: the nearest is" in output.splitlines()
    assert re.search(rf"^ *> *│ *{nearest} ", output, re.M)
    assert output.count("%") == lines
    assert f"elman model=e42 train.chunk_size=8 model.dim={nearest}" in output


def test_a_sweep_ends_in_one_table(elman_here: Elman, tmp_path: Path) -> None:
    status, output, errors = elman_here(
        "-m", "mode=solve", "model=e42,e75h4n16", "solve.params=1K,100M", "train.chunk_size=8"
    )
    assert (status, errors) == (1, "")
    table = [[cell.strip() for cell in line.split("│")] for line in output.splitlines()]
    rows = [row for row in table if len(row) > 1]
    assert [row[1] for row in rows] == [
        f"model={name} solve.params={params}"
        for name, params in itertools.product(("e42", "e75h4n16"), ("1K", "100M"))
    ]
    assert [row[-1] for row in rows] == ["not reached", "ok"] * 2
    assert rows[3][2:8] == [
        "100,000,000",
        "dim=2048",
        "20",
        "97,561,856",
        "-2.44%",
        "4,096",
    ]
    assert output.splitlines()[-4:] == [
        "elman model=e42 train.chunk_size=8 model.dim=128",
        "elman model=e42 train.chunk_size=8",
        "elman model=e75h4n16 train.chunk_size=8 model.dim=128",
        "elman model=e75h4n16 train.chunk_size=8",
    ]
    assert list(tmp_path.iterdir()) == []


def test_the_standard_table_has_the_seeds_counts_within_their_rounding(elman_here: Elman) -> None:
    rows = standard_rows()
    assert [row.seed for row in rows] == list(STANDARD)
    for row in rows:
        # Printed in whole millions; the seed's mamba2 is 101.9M by its own log, printed as 101M.
        assert abs(row.params - row.seed.millions * 1e6) < 1e6
        assert row.solved.config.depth == row.seed.depth
        assert abs(row.solved.count - 10**8) <= abs(row.params - 10**8)
    status, output, _ = elman_here("mode=solve", "solve.standard=true")
    assert status == 0
    for row in rows:
        (line,) = [line for line in output.splitlines() if line.startswith(f" {row.seed.label} ")]
        assert [cell.strip() for cell in line.split("│")] == row.cells()


def test_it_imports_no_compiler_and_leaves_torch_out_of_the_collection_of_garbage(
    tmp_path: Path,
) -> None:
    """What makes the answer quick: Dynamo alone would take a second."""
    code = """
import gc, sys
from elman.cli.main import main
for model in ("e1", "e75h4n32", "mamba2", "e88f_h32n16", "fla-gdn"):
    assert main(["mode=solve", f"model={model}", "solve.params=100M", "solve.depth=20"]) == 0
    print("imported", model, [name for name in ("torch._dynamo", "sympy") if name in sys.modules])
print("kept out", gc.isenabled(), gc.get_freeze_count() > 100_000)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    said = [line for line in ended.stdout.splitlines() if line.startswith(("imported", "kept"))]
    models = ("e1", "e75h4n32", "mamba2", "e88f_h32n16", "fla-gdn")
    assert said == [*(f"imported {model} []" for model in models), "kept out True True"]
