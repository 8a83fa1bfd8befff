"""``benchmark=<suite>`` as a sweep: its jobs, what wins over it, how it is taken up again."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from elman.config.run_config import RunConfig
from elman.devices import locks, nvml
from elman.runs.prepared import PreparedRun

Elman = Callable[..., Any]  # the fixtures of tests/stubs/command_line.py
# A plan of small models, whatever their sizes.
PLAN = ("sweep.dry_run=true", "sweep.equal_size=false", "model.dim=128", "model.depth=1")
# Sizes at which every model of a suite is built in no time.
SMALL = ("model.dim=128", "model.depth=1", "train.steps=3")
OWN = """\
# @package _global_
defaults:
  - override /optim: legacy
benchmark:
  title: one model twice
  source: a test
  runs: [[model=e88_tiny, train.steps=3], [model=e88_tiny, train.steps=904]]
train: {batch_size: 5, seed: 7}
hydra: {mode: MULTIRUN}
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Return a folder with suites of the user's own: ``twice`` and ``unequal``."""
    folder = tmp_path / "it's mine" / "benchmark"
    folder.mkdir(parents=True)
    (folder / "twice.yaml").write_text(OWN)
    unequal = OWN.replace(
        "[[model=e88_tiny, train.steps=3], [model=e88_tiny, train.steps=904]]",
        "[[model=e88_tiny], [model=e88_tiny, model.depth=1]]",
    )
    (folder / "unequal.yaml").write_text(unequal + "sweep: {equal_size: true}\n")
    return folder.parent


@pytest.fixture
def trained(elman: Elman, monkeypatch: pytest.MonkeyPatch) -> list[RunConfig]:
    """Return the list that every configuration handed to the trainer of this process goes to."""
    seen: list[RunConfig] = []

    def run(job: PreparedRun) -> int:
        seen.append(job.config)
        return 0

    monkeypatch.setattr(sys.modules["elman.modes.train"], "run", run)
    return seen


def commands(output: str) -> list[str]:
    """Return the commands of a dry run."""
    return [line for line in output.splitlines() if line.startswith("elman ")]


def sweep_file(folder: Path) -> dict[str, Any]:
    """Return the one sweep.json below a folder."""
    (path,) = folder.rglob("sweep.json")
    content = json.loads(path.read_text())
    assert isinstance(content, dict)
    return content


def job_settings(folder: Path) -> list[dict[str, Any]]:
    """Return the configuration of every job of the one sweep below a folder."""
    return [yaml.safe_load(path.read_text()) for path in sorted(folder.rglob("0*/config.yaml"))]


def test_a_suite_alone_is_a_sweep_of_its_runs(elman_process: Elman, tmp_path: Path) -> None:
    ended = elman_process("benchmark=quick_test", *SMALL)
    assert (ended.status, ended.errors) == (0, "")
    models = ["mamba2_896x20_legacy", "e75h8n24"]
    assert all(f"[{n}/2] model={name}" in ended.output for n, name in enumerate(models, 1))
    record = sweep_file(tmp_path)
    assert record["benchmark"] == "quick_test"
    for job, settings, name in zip(record["jobs"], job_settings(tmp_path), models, strict=True):
        typed = f"elman benchmark=quick_test model={name} {' '.join(SMALL)} hydra.mode=RUN"
        assert job["command"] == typed
        assert settings["model"]["name"] == name
        assert (settings["optim"]["name"], settings["optim"]["warmup_steps"]) == ("legacy", 100)
        assert settings["train"]["minutes"] == 1
        assert settings["train"]["steps"] == 3
        assert "benchmark" not in settings


def test_a_sweep_without_a_suite_says_so(elman: Elman, tmp_path: Path) -> None:
    elman("-m", "hydra/launcher=basic", "train.steps=3")
    assert sweep_file(tmp_path)["benchmark"] is None


def test_a_printed_command_runs_its_job_alone(elman: Elman, tmp_path: Path) -> None:
    planned = elman("benchmark=batch_scaling", "sweep.dry_run=true", *SMALL, "benchmark.only=e23*")
    assert (planned.status, planned.errors) == (0, "")
    shared = f"{' '.join(SMALL)} hydra.mode=RUN"
    model = "elman benchmark=batch_scaling model=e23_512x17_e1.5_legacy"
    printed = commands(planned.output)
    assert printed == [f"{model} train.batch_size={batch} {shared}" for batch in (4, 64)]
    assert list(tmp_path.iterdir()) == []
    alone = elman(*shlex.split(printed[1])[1:])
    assert (alone.status, alone.errors) == (0, "")
    assert alone.output.startswith("ran train e23_512x17_e1.5_legacy 3 ")
    (settings,) = [
        yaml.safe_load(p.read_text())
        for p in tmp_path.rglob("config.yaml")
        if p.parent.name != ".hydra"
    ]
    assert settings["train"]["batch_size"] == 64
    assert settings["optim"]["beta2"] == 0.999


@pytest.mark.parametrize("launcher", ["local", "slurm"])
def test_every_launcher_plans_the_same_jobs(
    elman: Elman, launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "baseline.allow_slow=true"
    for path in (tmp_path / "bin", tmp_path / "bin" / "srun"):
        path.mkdir() if path.name == "bin" else path.touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    ended = elman("benchmark=quick_test", "sweep.dry_run=true", f"launcher={launcher}", slow)
    assert commands(ended.output) == [
        f"elman benchmark=quick_test model=mamba2_896x20_legacy {slow} hydra.mode=RUN",
        f"elman benchmark=quick_test model=e75h8n24 {slow} hydra.mode=RUN",
    ], ended.errors


def test_what_the_user_types_wins_and_may_be_swept(elman: Elman, trained: list[RunConfig]) -> None:
    ended = elman(
        "benchmark=quick_test",
        "hydra/launcher=basic",
        "model.depth=1",
        "train.seed=1,2",
        "train.batch_size=3",
        "optim=schedulefree",
        "benchmark.only=e75h8n24",
    )
    assert (ended.status, ended.errors) == (0, "")
    assert [config.train.seed for config in trained] == [1, 2]
    assert {config.train.batch_size for config in trained} == {3}
    assert {config.train.chunk_size for config in trained} == {512}
    # All of another recipe, and nothing of the suite's.
    assert {(c.optim.name, c.optim.warmup_steps) for c in trained} == {("schedulefree", 0)}
    assert "model=e75h8n24 train.seed=2" in ended.output


@pytest.mark.parametrize(
    ("only", "models"),
    [
        (["-m", "benchmark.only=e75h4n24,fla-gdn"], ["fla-gdn", "e75h4n24"]),
        (["benchmark.only=[e75h4n24,fla-gdn]"], ["fla-gdn", "e75h4n24"]),
        (["benchmark.only=mamba2*,*h8n24"], ["mamba2_896x20_legacy", "e75h8n24"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_some_models_of_a_suite(elman: Elman, only: list[str], models: list[str]) -> None:
    ended = elman("benchmark=e75_100m", *PLAN, *only)
    chosen = [shlex.split(line)[2] for line in commands(ended.output)]
    assert chosen == [f"model={name}" for name in models], ended.errors


def test_a_suite_of_the_users_own_is_taken_up_again(
    elman_process: Elman, mine: Path, tmp_path: Path
) -> None:
    own = ("benchmark=twice", "benchmark.only=e88*")
    first = elman_process("--config-dir", str(mine), *own)
    assert first.status == 1, first.errors
    record = sweep_file(tmp_path)
    assert [job["status"] for job in record["jobs"]] == ["ok", "nan"]
    # The suite's recipe wins over the one that the model brings.
    for settings in job_settings(tmp_path):
        assert settings["optim"]["name"] == "legacy"
        assert (settings["train"]["batch_size"], settings["train"]["seed"]) == (5, 7)
    (sweep,) = (tmp_path / "outputs").glob("*/*_sweep")
    again = elman_process("--config-dir", str(mine), "-m", f"sweep.resume={sweep}")
    assert "1 of 2 jobs are ok already" in again.output.splitlines(), again.errors
    assert sweep_file(tmp_path)["benchmark"] == "twice"
    assert sweep_file(tmp_path)["arguments"] == list(own)


def test_a_claim_of_one_size_is_held_or_given_up(elman: Elman, mine: Path) -> None:
    command = ("--config-dir", str(mine), "benchmark=unequal", "sweep.dry_run=true")
    refused = elman(*command)
    assert refused.status == 2
    assert refused.errors.startswith("elman: error: sweep.max_params_spread=0.15: sizes differ by")
    marked = elman(*command, "sweep.equal_size=false")
    assert marked.status == 0
    assert "note: sizes differ by" in marked.output


class TestClaimOfAResumedSweep:
    """What a sweep claims of sizes holds when it goes on.

    A sweep of an earlier version has not recorded its jobs: it goes on as if it started now.
    """

    FIRST = ("hydra/launcher=basic", "hydra.sweep.dir=sweep", "train.steps=3")
    AGAIN = ("hydra/launcher=basic", "-m", "sweep.resume=sweep")

    @pytest.fixture
    def own(self, tmp_path: Path) -> Path:
        """Return a folder with a model and a suite that claims one size and has it."""
        folder = tmp_path / "mine"
        for group in ("benchmark", "model"):
            (folder / group).mkdir(parents=True)
        suite = OWN.replace("model=e88_tiny, train.steps=904", "model=grown")
        suite = suite.replace("train.steps=3", "train.batch_size=3")
        (folder / "benchmark" / "one.yaml").write_text(suite + "sweep: {equal_size: true}\n")
        self.grow(folder, 2)
        return folder

    def grow(self, own: Path, depth: int) -> None:
        """Write the suite's second model; e88_tiny has two layers."""
        text = f"defaults: [e88_tiny, _self_]\ndepth: {depth}\nexpected_params: null\n"
        (own / "model" / "grown.yaml").write_text("# Mine.\n" + text)

    @pytest.fixture
    def start(self, elman: Elman, own: Path) -> Elman:
        """Return ``start(*arguments)``: the command with the user's own YAML files."""
        return lambda *arguments: elman("--config-dir", str(own), *arguments)

    def older(self, tmp_path: Path) -> None:
        """Make the sweep one of an earlier version, which recorded less."""
        (tmp_path / "sweep" / "jobs.jsonl").unlink()
        content = sweep_file(tmp_path)
        del content["sizes"]
        (tmp_path / "sweep" / "sweep.json").write_text(json.dumps(content))

    def test_a_model_that_grew_since_is_refused_by_a_fresh_start_alone(
        self, start: Elman, own: Path, tmp_path: Path
    ) -> None:
        assert start("benchmark=one", *self.FIRST).status == 0
        self.grow(own, 4)
        again = start(*self.AGAIN)
        assert (again.status, again.errors) == (0, "")
        assert "2 of 2 jobs are ok already" in again.output
        assert start("benchmark=one", "hydra/launcher=basic", "hydra.sweep.dir=fresh").status == 2

    def test_in_an_older_sweep_a_model_that_grew_is_refused(
        self, start: Elman, own: Path, tmp_path: Path
    ) -> None:
        assert start("benchmark=one", *self.FIRST).status == 0
        self.older(tmp_path)
        before = sweep_file(tmp_path)
        self.grow(own, 4)
        again = start(*self.AGAIN)
        fresh = start("benchmark=one", "hydra/launcher=basic", "hydra.sweep.dir=fresh")
        assert (again.status, fresh.status) == (2, 2)
        assert fresh.errors.startswith(
            "elman: error: sweep.max_params_spread=0.15: sizes differ by 8"
        )
        assert "job 2 was 02_grown_" in again.errors
        assert again.errors.count("\n") == 1
        assert sweep_file(tmp_path) == before

    def test_a_claim_that_the_suite_makes_only_now_counts_in_an_older_sweep(
        self, start: Elman, own: Path, tmp_path: Path
    ) -> None:
        file = own / "benchmark" / "one.yaml"
        claiming = file.read_text()
        file.write_text(claiming.replace("equal_size: true", "equal_size: false"))
        self.grow(own, 4)
        assert start("benchmark=one", *self.FIRST).status == 0
        file.write_text(claiming)
        assert "note: sizes differ by" in start(*self.AGAIN).output
        self.older(tmp_path)
        assert start(*self.AGAIN).errors.startswith("elman: error: sweep.max_params_spread=0.15")

    def test_what_was_typed_at_the_start_is_not_forgotten(
        self, start: Elman, own: Path, tmp_path: Path
    ) -> None:
        self.grow(own, 4)
        assert start("benchmark=one", *self.FIRST, "sweep.equal_size=false").status == 0
        again = start(*self.AGAIN)
        assert (again.status, again.errors) == (0, "")
        assert "note: sizes differ by" in again.output
        assert "2 of 2 jobs are ok already" in again.output
        record = sweep_file(tmp_path)
        assert record["claims"] == ["sweep.equal_size=false"]
        assert record["command"].endswith("train.steps=3 sweep.equal_size=false")
        assert start(*self.AGAIN, "sweep.equal_size=true").status == 2
        wide = start(*self.AGAIN, "sweep.equal_size=true", "sweep.max_params_spread=2")
        assert (wide.status, wide.errors) == (0, "")
        assert "sizes differ" not in wide.output
        given = ["sweep.equal_size=true", "sweep.max_params_spread=2"]
        assert sweep_file(tmp_path)["claims"] == given

    def test_a_sweep_of_an_earlier_version_goes_on(
        self, start: Elman, own: Path, tmp_path: Path
    ) -> None:
        start("benchmark=one", *self.FIRST)
        self.older(tmp_path)
        content = sweep_file(tmp_path)
        del content["claims"], content["suite"]
        (tmp_path / "sweep" / "sweep.json").write_text(json.dumps(content))
        again = start(*self.AGAIN)
        assert (again.status, again.errors) == (0, "")
        assert sweep_file(tmp_path)["suite"]["title"] == "one model twice"


def test_only_tables_that_compare_say_that_sizes_differ(elman: Elman) -> None:
    for mode, said in (("bench", True), ("parity", False)):
        ended = elman("-m", f"mode={mode}", "model.depth=1,4", "sweep.dry_run=true")
        assert ended.status == 0
        assert ("note: sizes differ" in ended.output) == said, mode


def test_a_suite_asks_for_jobs_that_share_gpus_and_the_user_wins(
    elman: Elman, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (mine.parent / "gpus.json").write_text('[{"uuid": "GPU-a"}]')
    monkeypatch.setenv(nvml.PRETENDED, str(mine.parent / "gpus.json"))
    monkeypatch.setenv(locks.FOLDER, str(mine.parent / "locks"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    timed = OWN.replace("source: a test", "source: a test\n  jobs_per_gpu: 2")
    timed = timed.replace("batch_size: 5", "minutes: 3, batch_size: 5")
    (mine / "benchmark" / "twice.yaml").write_text(timed)
    suite = ("--config-dir", str(mine), "benchmark=twice", "sweep.dry_run=true")
    assert "error: launcher.jobs_per_gpu=2: with train.minutes=3" in elman(*suite).errors
    for other in ("launcher.jobs_per_gpu=1", "launcher=local", "train.minutes=null"):
        assert elman(*suite, other).status == 0


class TestSlowPaths:
    """On a machine with a GPU, here a pretended one."""

    @pytest.fixture(autouse=True)
    def _gpu(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "gpus.json").write_text('[{"uuid": "GPU-a"}]')
        monkeypatch.setenv(nvml.PRETENDED, str(tmp_path / "gpus.json"))
        monkeypatch.setenv(locks.FOLDER, str(tmp_path / "locks"))
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    @pytest.mark.parametrize("plan", [(), ("sweep.dry_run=true",)], ids=["start", "plan"])
    def test_a_suite_that_claims_speed_is_refused_before_it_starts(
        self, elman: Elman, tmp_path: Path, plan: tuple[str, ...]
    ) -> None:
        suite = ("benchmark=batch_scaling", "benchmark.only=e1*,e23*,mamba2*")
        ended = elman(*suite, "train.steps=3", *plan)
        assert ended.status == 2
        assert ended.errors.startswith(
            "elman: error: benchmark=batch_scaling claims speed: on a GPU "
            "mamba2n64_672x18_legacy would run as plain PyTorch (cell mamba2: mamba-ssm is not "
        )
        assert ended.errors.endswith(
            "; add baseline.allow_slow=true, which marks the rows, or benchmark.only="
            "e1_512x21_e1.5_legacy,e1_1280x6_legacy,e23_512x17_e1.5_legacy\n"
        )
        assert not (tmp_path / "outputs").exists()

    def test_any_other_suite_runs_and_says_so_once_for_each_reason(
        self, elman: Elman, trained: list[RunConfig]
    ) -> None:
        only = ("benchmark.only=e63m,e1,e56,mamba2*", "baseline.allow_slow=true")
        small = (*SMALL, "sweep.equal_size=false")
        ended = elman("benchmark=100m_10min", *only, *small, "hydra/launcher=basic")
        assert (ended.status, ended.errors) == (0, "")
        said = [line for line in ended.output.splitlines() if line.startswith("slow path: ")]
        assert len(said) == 1
        assert "as plain PyTorch (cell mamba2: mamba-ssm is not installed; " in said[0]
        assert {"e63m", "e1"} <= {config.model.name for config in trained}

    def test_a_sweep_without_a_suite_says_it_too(self, elman: Elman) -> None:
        slow = ("kernels.backend=reference", "hydra/launcher=basic", "train.steps=3")
        ended = elman("-m", "model=e23,e63m", *slow)
        assert (
            "slow path: e23, e63m run as plain PyTorch (cells e23, e63m: requested by "
            "kernels.backend=reference); marked in the tables\n"
        ) in ended.output

    def test_a_baseline_without_its_package_stops_any_sweep(
        self, elman: Elman, tmp_path: Path
    ) -> None:
        command = ("-m", "model=mamba2,e23", "train.steps=3", "model.depth=1")
        ended = elman(*command, "sweep.dry_run=true")
        assert ended.status == 2
        assert ended.errors.startswith(
            "elman: error: baseline.allow_slow=false: on a GPU mamba2 would run as plain PyTorch "
            "(cell mamba2: mamba-ssm is not installed; pip install "
        )
        allowed = elman(*command, "sweep.dry_run=true", "baseline.allow_slow=true")
        assert allowed.status == 0
        assert allowed.output.count("slow path: ") == 1

    @pytest.mark.parametrize(
        "more",
        [
            "baseline.allow_slow=true",
            "train.device=cpu",
        ],
    )
    def test_what_lets_it_start(self, elman: Elman, trained: list[RunConfig], more: str) -> None:
        ended = elman("benchmark=quick_test", *SMALL, more, "hydra/launcher=basic")
        assert (ended.status, ended.errors) == (0, "")
        assert trained

    def test_the_reference_by_name_is_one(self, elman: Elman) -> None:
        ended = elman(
            "benchmark=quick_test", *SMALL, "benchmark.only=e75h8n24", "kernels.backend=reference"
        )
        assert ended.status == 2
        assert "(cell e75: requested by kernels.backend=reference); add" in ended.errors
