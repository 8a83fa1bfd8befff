"""The audit of a comparison: every known way to rig one is found, and a clean one has none."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elman.cli.main import main
from elman.report.comparison.audit.audit import METHOD, Audit
from elman.report.comparison.audit.endings import fall
from elman.report.comparison.audit.finding import State
from elman.report.comparison.audit.table import CHECKS, KEYS
from elman.report.comparison.page import page_text
from elman.report.comparison.report_data import make_report
from elman.report.comparison.write import markdown_text

from .fake_sweep import FakeSweep, merged

ONE, OTHER = "e97", "e72_inverse"
RATES = (3e-4, 1e-3, 3e-3)
NOISE = np.random.default_rng(0).normal(0, 0.002, 60)
FLAT = [*np.linspace(5, 1.5, 20), *(1.5 + NOISE)]
FALLING = list(np.linspace(5, 1.5, 80))
GPU = {
    "device": "cuda",
    "device_name": "a GPU",
    "host": "here",
    "gpu": {"uuid": "GPU-1"},
}
FACTS: dict[str, Any] = {
    "state_bytes": 4096,
    "precision": "bf16",
    "flops": 1e12,
    "contended": False,
    "jobs_per_gpu": 1,
    "backend": "cuda",
    "graph": True,
    "environment": GPU,
}
"""What every run of a clean sweep says of itself, besides the usual."""


def score(lr: float) -> float:
    """Return the held-out bits of a rate: the best one is 1e-3."""
    return 1.5 + 0.1 * abs(float(np.log10(lr / 1e-3)))


def arm(
    sweep: FakeSweep,
    model: str,
    *overrides: str,
    rates: Sequence[float] = RATES,
    result: Mapping[str, Any] | None = None,
    losses: Sequence[float] = FLAT,
    seeds: Sequence[int] = (1, 2),
    trial_seed: int = 0,
    more_values: Mapping[str, Any] | None = None,
) -> None:
    """Add a model with its trials and its confirmed runs, as a tuned sweep leaves them."""
    best = min(rates, key=score)
    jobs = [("trial", lr, trial_seed) for lr in rates] + [("best", best, seed) for seed in seeds]
    for number, (phase, lr, seed) in enumerate(jobs, 1):
        tuning = {
            "arm": model,
            "phase": phase,
            "trial": number if phase == "trial" else None,
            "values": {"optim.lr": lr, **(more_values or {})},
            "common": False,
        }
        sweep.job(
            *(f"model={model}", f"train.seed={seed}", f"optim.lr={lr:g}", *overrides),
            tuning=tuning,
            result=merged(FACTS | {"loss": score(lr)}, result or {}),
            losses=losses,
        )


def plain(
    sweep: FakeSweep,
    model: str,
    *overrides: str,
    seeds: Sequence[int] = (1, 2),
    result: Mapping[str, Any] | None = None,
    losses: Sequence[float] = FLAT,
) -> None:
    """Add a model at one setting, tuned by nobody."""
    for seed in seeds:
        told = merged(FACTS | {"loss": 1.5}, result or {})
        sweep.job(f"model={model}", f"train.seed={seed}", *overrides, result=told, losses=losses)


def task(
    sweep: FakeSweep, model: str, accuracy: float, losses: Sequence[float] = FLAT, **result: Any
) -> None:
    """Add a model that learned a task."""
    learned = {
        "accuracy": accuracy,
        "accuracy_by_length": {"32": accuracy, "64": 0.5},
        "data": {"task": "parity", "bytes": None, "sha256": "abc", "chance_by_length": {"32": 0.5}},
    }
    plain(sweep, model, "data=parity", result=merged(learned, result), losses=losses)


@pytest.fixture
def sweep(tmp_path: Path) -> FakeSweep:
    """Return an empty sweep."""
    return FakeSweep(tmp_path / "sweep", tune=tune_head(ONE, OTHER))


def tune_head(*arms: str) -> dict[str, Any]:
    """Return what sweep.json says of the search of some models."""
    leaf = {"low": 1e-4, "high": 1e-2, "log": True}
    told = [
        {"arm": one, "model": one, "trial_model": one, "published": {"optim.lr": 3e-4}}
        for one in arms
    ]
    return {
        "config": {"space": {"optim": {"lr": leaf}}},
        "score": "val_bpb",
        "goal": "minimize",
        "arms": told,
        "ranges": [{"optim.lr": {"low": 1e-4, "high": 1e-2}}],
        "state": "done",
    }


def audit(*folders: Path, allow: Sequence[str] = ()) -> Audit:
    """Return the audit of some folders."""
    return make_report(folders, allow=allow).audit


def test_nothing_is_reported_on_a_clean_sweep(sweep: FakeSweep) -> None:
    arm(sweep, ONE)
    arm(sweep, OTHER)
    found = audit(sweep.folder)
    assert found.lines() == []
    assert {row.finding.state for row in found.rows} <= {State.EQUAL, State.DECLARED}
    assert {"tuned", "space", "trials", "edges", "trial_budget", "fresh_seeds", "score"} <= {
        row.check.key for row in found.of(State.EQUAL)
    }


# ------------------------------------------------------------------ the known faults


def wrong_architecture(sweep: FakeSweep) -> None:
    arm(sweep, ONE)
    arm(sweep, OTHER, "model.n_state=16")


def too_few_heads(sweep: FakeSweep) -> None:
    arm(sweep, ONE)
    arm(sweep, OTHER, result={"state_bytes": 512})


def shape_searched_for_one(sweep: FakeSweep) -> None:
    arm(sweep, ONE, more_values={"model.depth": 2, "model.dim": 256})
    arm(sweep, OTHER)


def no_mlp(sweep: FakeSweep) -> None:
    arm(sweep, ONE, "model.mlp_ratio=2")
    arm(sweep, OTHER)


def two_precisions(sweep: FakeSweep) -> None:
    arm(sweep, ONE)
    arm(sweep, OTHER, result={"precision": "fp32"})


def two_precisions_of_older_runs(sweep: FakeSweep) -> None:
    arm(sweep, ONE, result={"precision": None})
    arm(sweep, OTHER, "train.precision=fp32", result={"precision": None})


def unequal_trials(sweep: FakeSweep) -> None:
    arm(sweep, ONE)
    arm(sweep, OTHER, rates=[1e-3])


def no_separation(sweep: FakeSweep) -> None:
    task(sweep, ONE, 0.999)
    task(sweep, OTHER, 1.0)


def too_few_steps(sweep: FakeSweep) -> None:
    task(sweep, ONE, 0.51)
    task(sweep, OTHER, 0.5)


def speed_for_ability(sweep: FakeSweep) -> None:
    task(sweep, ONE, 0.7, FALLING)
    task(sweep, OTHER, 1.0)


def training_loss_decides(sweep: FakeSweep) -> None:
    arm(sweep, ONE, "train.steps=1500", result={"steps": 1500})
    arm(sweep, OTHER, "train.steps=1500", result={"steps": 1500})


def no_provenance(sweep: FakeSweep) -> None:
    arm(sweep, ONE)
    arm(sweep, OTHER, result={"environment": {"device_name": None}})


def untuned_baseline(sweep: FakeSweep) -> None:
    arm(sweep, ONE)
    plain(sweep, OTHER)


def nobody_tuned(sweep: FakeSweep) -> None:
    plain(sweep, ONE)
    plain(sweep, OTHER)


def tuned_by_hand_for_one(sweep: FakeSweep) -> None:
    plain(sweep, ONE, "optim.lr=1e-3")
    plain(sweep, ONE, "optim.lr=3e-3")
    plain(sweep, OTHER, "optim.lr=1e-3")


def without_kernels(sweep: FakeSweep) -> None:
    arm(sweep, ONE)
    arm(sweep, OTHER, result={"backend": "reference", "slow_path": True})


def two_sweeps(sweep: FakeSweep) -> None:
    arm(sweep, ONE)
    arm(sweep, OTHER)
    beside = FakeSweep(sweep.folder.parent / "beside")
    arm(beside, ONE)


def best_at_the_edge(sweep: FakeSweep) -> None:
    arm(sweep, ONE)
    arm(sweep, OTHER, rates=(3e-4, 5e-4, 1e-3))


def best_at_the_edge_by_hand(sweep: FakeSweep) -> None:
    for model, rates in ((ONE, RATES), (OTHER, RATES[:2])):
        for lr in rates:
            plain(sweep, model, f"optim.lr={lr:g}", result={"loss": score(lr)})


def searched_by_training_loss(sweep: FakeSweep) -> None:
    sweep.top["tune"]["score"] = "loss"
    arm(sweep, ONE)
    arm(sweep, OTHER)


def other_space_in_another_sweep(sweep: FakeSweep) -> None:
    arm(sweep, ONE)
    leaf = {"low": 1e-5, "high": 1e-2, "log": True}
    head = merged(tune_head(OTHER), {"config": {"space": {"optim": {"lr": leaf}}}})
    arm(FakeSweep(sweep.folder.parent / "beside", tune=head), OTHER)


def trials_confirm_themselves(sweep: FakeSweep) -> None:
    arm(sweep, ONE, trial_seed=1)
    arm(sweep, OTHER, trial_seed=1)


def one_still_learns(sweep: FakeSweep) -> None:
    arm(sweep, ONE, losses=FALLING)
    arm(sweep, OTHER)


Fault = Callable[[FakeSweep], None]
FAULTS: dict[Fault, str] = {
    wrong_architecture: "architecture",
    too_few_heads: "state_bytes",
    shape_searched_for_one: "space",
    no_mlp: "mlp",
    two_precisions: "precision",
    two_precisions_of_older_runs: "precision",
    unequal_trials: "trials",
    no_separation: "separation",
    too_few_steps: "enough_steps",
    speed_for_ability: "ability",
    training_loss_decides: "score",
    no_provenance: "provenance",
    untuned_baseline: "tuned",
    nobody_tuned: "tuned",
    tuned_by_hand_for_one: "tuned",
    without_kernels: "backend",
    two_sweeps: "contention",
    trials_confirm_themselves: "fresh_seeds",
    best_at_the_edge: "edges",
    best_at_the_edge_by_hand: "edges",
    searched_by_training_loss: "score",
    other_space_in_another_sweep: "space",
    one_still_learns: "falling",
}
"""Every injected fault, with the row of the audit that finds it."""


@pytest.mark.parametrize(
    ("rig", "key"), FAULTS.items(), ids=lambda one: getattr(one, "__name__", one)
)
def test_a_rigged_comparison_is_found(sweep: FakeSweep, rig: Fault, key: str) -> None:
    rig(sweep)
    folders = sorted(path for path in sweep.folder.parent.iterdir() if path.is_dir())
    found = audit(*folders)
    assert found.state(key) == State.UNEQUAL
    (line,) = (line for line in found.lines() if f" {_words(key)}: " in line)
    assert line.startswith("audit: not equal: ")


def test_every_fault_of_the_table_is_injected_by_a_test() -> None:
    assert {check.key for check in CHECKS if check.finds} <= {*FAULTS.values()}


def _words(key: str) -> str:
    return next(check.words for check in CHECKS if check.key == key)


# ------------------------------------------------------------------ the other rows


@pytest.mark.parametrize(
    ("key", "overrides", "result"),
    [
        ("params", (), {"params": 200_000}),
        ("steps", ("train.steps=50",), {"steps": 50}),
        ("steps", (), {"steps": 20}),
        ("minutes", ("train.minutes=3", "train.steps=null"), {}),
        ("data", (), {"data": {"sha256": "another"}}),
        ("order", ("train.data_seed=7",), {}),
        ("machine", (), {"environment": {"device_name": "another GPU"}}),
        ("code", (), {"environment": {"revision": "another"}}),
        ("convolution", ("model.use_conv=true",), {}),
        ("optimizer", ("optim.weight_decay=0.1",), {}),
        ("trial_budget", ("train.steps=50",), {}),
        ("contention", (), {"contended": True}),
        ("contention", (), {"jobs_per_gpu": 2}),
    ],
)
def test_what_differs_is_not_equal(
    sweep: FakeSweep, key: str, overrides: tuple[str, ...], result: dict[str, Any]
) -> None:
    arm(sweep, ONE)
    arm(sweep, OTHER, *overrides, result=result)
    assert audit(sweep.folder).state(key) == State.UNEQUAL


def test_other_seeds_are_not_equal(sweep: FakeSweep) -> None:
    arm(sweep, ONE)
    arm(sweep, OTHER, seeds=(1, 3))
    assert audit(sweep.folder).state("seeds") == State.UNEQUAL


def test_negative_eigenvalues_are_compared_where_they_are_a_setting(tmp_path: Path) -> None:
    states = {}
    for one, other in (("fla-gdn", "gdn-neg"), ("gdn-neg", ONE), ("fla-gdn", ONE)):
        sweep = FakeSweep(tmp_path / f"{one}_{other}")
        arm(sweep, one)
        arm(sweep, other)
        states[one, other] = audit(sweep.folder).state("negative_eigenvalues")
    assert states == {
        ("fla-gdn", "gdn-neg"): State.UNEQUAL,
        ("gdn-neg", ONE): State.EQUAL,
        ("fla-gdn", ONE): State.UNKNOWN,
    }


def test_other_lengths_of_a_task_are_not_equal(sweep: FakeSweep) -> None:
    task(sweep, ONE, 0.7)
    task(sweep, OTHER, 1.0, accuracy_by_length={"128": 0.5})
    assert audit(sweep.folder).state("lengths") == State.UNEQUAL


@pytest.mark.parametrize(
    ("key", "result"),
    [
        ("state_bytes", {"state_bytes": None}),
        ("params", {"params": None}),
        ("flops", {"flops": None}),
        ("contention", {"contended": None}),
        ("backend", {"backend": None}),
        ("precision", {"precision": None, "environment": {"device": None}}),
        ("code", {"environment": {"packages": {"torch": None}}}),
    ],
)
def test_what_the_files_do_not_say_is_not_known(
    sweep: FakeSweep, key: str, result: dict[str, Any]
) -> None:
    arm(sweep, ONE)
    arm(sweep, OTHER, result=result)
    assert audit(sweep.folder).state(key) == State.UNKNOWN


def test_what_follows_from_the_budget_is_declared(sweep: FakeSweep) -> None:
    arm(sweep, ONE, "train.minutes=2", "train.steps=null", result={"steps": 80, "tokens": 9999})
    arm(sweep, OTHER, "train.minutes=2", "train.steps=null")
    found = audit(sweep.folder)
    assert found.state("minutes") == State.EQUAL
    assert (found.state("steps"), found.state("bytes")) == (State.DECLARED, State.DECLARED)
    assert found.lines() == []


def test_what_was_swept_alike_for_every_model_is_declared(sweep: FakeSweep) -> None:
    for model in (ONE, OTHER):
        for ratio in ("0", "2"):
            arm(sweep, model, f"model.mlp_ratio={ratio}")
    assert audit(sweep.folder).state("mlp") == State.DECLARED


def test_a_shape_that_the_command_sets_for_every_model_is_no_other_architecture(
    sweep: FakeSweep,
) -> None:
    arm(sweep, ONE, "model.depth=3")
    arm(sweep, OTHER, "model.depth=3")
    assert audit(sweep.folder).state("architecture") == State.EQUAL


def test_layers_that_are_typed_differently_are_the_same_setting(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    rates = ("0.001", "0.002", "0.003")
    ways = ("[e1,e88]", "[{cell:e88,at:[1,3]}]", "[e1,e88,e1,e88]")
    for rate, way in zip(rates, ways, strict=True):
        sweep.job("model=e1", "model.depth=4", f"model.layers={way}", f"optim.lr={rate}")
        sweep.job("model=e42", f"optim.lr={rate}")
    assert audit(sweep.folder).state("space") == State.EQUAL
    sweep.job("model=e1", "model.depth=4", "model.layers=[e88,e1]", "optim.lr=0.001")
    assert audit(sweep.folder).state("space") == State.UNEQUAL


@pytest.mark.parametrize(("places", "state"), [("3,7", State.EQUAL), ("2,6", State.UNEQUAL)])
def test_the_layers_of_a_models_file_may_be_typed_differently(
    tmp_path: Path, places: str, state: State
) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    entry = f"[{{cell:e88,linear_state:false,at:[{places}]}}]"
    sweep.job("model=e88_h8n16_tanh_4th_128x8", f"model.layers={entry}")
    sweep.job("model=e42")
    assert audit(sweep.folder).state("architecture") == state


def test_a_shape_that_was_tuned_is_no_other_architecture(sweep: FakeSweep) -> None:
    arm(sweep, ONE, "model.depth=3", more_values={"shape": "depth=3 dim=1536"})
    arm(sweep, OTHER, more_values={"shape": "depth=20 dim=1536"})
    assert audit(sweep.folder).state("architecture") == State.EQUAL


def test_rates_of_one_model_are_declared_by_the_sweep(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep")
    for lr in RATES:
        plain(sweep, ONE, f"optim.lr={lr:g}", result={"loss": score(lr)})
    found = audit(sweep.folder)
    assert found.lines() == []
    assert found.state("optimizer") == State.DECLARED


def test_the_loss_on_rows_of_a_task_is_one_on_rows_never_seen(sweep: FakeSweep) -> None:
    for model in (ONE, OTHER):
        result = {"steps": 1500, "accuracy": 1.0, "data": {"task": "parity"}}
        plain(sweep, model, "data=parity", "train.steps=1500", result=result)
    assert audit(sweep.folder).state("score") == State.EQUAL


def test_curves_that_all_fall_leave_a_larger_budget_unknown(sweep: FakeSweep) -> None:
    arm(sweep, ONE, losses=FALLING)
    arm(sweep, OTHER, losses=FALLING)
    assert audit(sweep.folder).state("falling") == State.UNKNOWN


def test_published_figures_say_little_of_where_they_are_from(tmp_path: Path) -> None:
    sweep = FakeSweep(tmp_path / "sweep", benchmark="quick_test")
    for model in ("mamba2_896x20_legacy", "e75h8n24"):
        arm(sweep, model)
    assert audit(sweep.folder).state("provenance") == State.UNKNOWN


@pytest.mark.parametrize("seed", range(20))
def test_noise_does_not_fall(seed: int) -> None:
    noise = np.random.default_rng(seed).normal(0, 0.05, 400)
    assert not fall(1.5 + noise)
    assert fall(1.5 + noise / 20) == 0
    assert fall(np.linspace(3, 1.5, 400) + noise) == pytest.approx(0.2, abs=0.05)


def test_noise_that_would_hide_a_fall_leaves_it_unknown() -> None:
    noise = np.random.default_rng(0).normal(0, 0.2, 400)
    assert fall(1.5 + noise) is None


def test_of_few_steps_the_slope_is_not_known() -> None:
    assert fall(np.linspace(3, 1.5, 12)) is None


def test_one_row_is_no_comparison(sweep: FakeSweep) -> None:
    arm(sweep, ONE)
    found = audit(sweep.folder)
    assert (found.rows, found.lines(), found.parts()) == ((), [], [])


# ------------------------------------------------------------------ where it is shown


def test_page_and_markdown_show_every_row(sweep: FakeSweep) -> None:
    no_mlp(sweep)
    report = make_report([sweep.folder])
    for text in (page_text(report), markdown_text(report)):
        assert "MLP" in text
        assert "not equal" in text
        assert "held equal" in text
    assert "<h2>Audit</h2>" in page_text(report)
    assert all(f">{text}</p>" in unescape(page_text(report)) for text in METHOD)
    assert "\n\n".join(METHOD) in markdown_text(report)


@pytest.fixture
def mode_report(
    sweep: FakeSweep, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Return ``mode_report(*overrides)``: mode=report on the sweep, its status and output."""

    def run(*overrides: str) -> tuple[int, str, str]:
        monkeypatch.chdir(sweep.folder.parent)
        status = main(["mode=report", f"report.dir={sweep.folder}", *overrides])
        return status, *capfd.readouterr()

    return run


def test_the_terminal_says_what_is_not_equal_and_a_file_says_all(sweep, mode_report) -> None:
    no_mlp(sweep)
    status, output, _ = mode_report()
    assert status == 0
    told = [line for line in output.splitlines() if line.startswith("audit: ")]
    assert [line.split(": ")[2] for line in told] == ["each model as its file says", "MLP"]
    written = json.loads((sweep.folder / "audit.json").read_text())
    assert written["not_equal"] == ["architecture", "mlp"]
    assert {row["key"] for row in written["rows"]} <= {*KEYS}
    by_key = {row["key"]: row["state"] for row in written["rows"]}
    assert (by_key["mlp"], by_key["params"]) == ("not equal", "held equal")


def test_strict_ends_with_1_unless_what_is_unequal_is_declared(sweep, mode_report) -> None:
    no_mlp(sweep)
    status, output, _ = mode_report("report.strict=true")
    assert status == 1
    (line,) = (line for line in output.splitlines() if line.startswith("report.strict=true"))
    assert line.endswith("to declare it: 'report.allow=[architecture,mlp]'")
    assert mode_report("report.strict=true", "report.allow=mlp")[0] == 1
    assert mode_report("report.strict=true", "report.allow=[mlp,architecture]")[0] == 0


def test_strict_ends_well_on_a_clean_sweep(sweep, mode_report) -> None:
    arm(sweep, ONE)
    arm(sweep, OTHER)
    assert mode_report("report.strict=true")[0] == 0


def test_what_is_allowed_is_declared_without_strict(sweep, mode_report) -> None:
    no_mlp(sweep)
    status, output, _ = mode_report("report.allow=[mlp]")
    assert status == 0
    assert "MLP" not in "".join(line for line in output.splitlines() if line.startswith("audit"))
    assert json.loads((sweep.folder / "audit.json").read_text())["declared"] == ["mlp"]


def test_a_row_that_does_not_exist_is_refused_with_the_nearest(sweep, mode_report) -> None:
    arm(sweep, ONE)
    status, _, errors = mode_report("report.allow=[mpl]")
    assert status == 2
    assert "report.allow=mpl: no row of an audit (did you mean mlp?); rows: params" in errors


def test_a_row_on_kernels_that_were_asked_for_is_not_a_slower_one(sweep: FakeSweep) -> None:
    arm(sweep, ONE)
    arm(sweep, "fla-gdn_768x20_e1", result={"backend": "flash_qla"})
    assert audit(sweep.folder).state("backend") == State.EQUAL
