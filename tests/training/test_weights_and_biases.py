"""Runs that report to Weights & Biases: ids of their own, and no failure there that costs a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from elman.training import weights_and_biases, writer
from tests.small_run import E1, Elman, elman_said
from tests.training.dashboards import failing, result_of, stand_in

SETTINGS = (*E1, "train.steps=2", "data.path=text.txt", "log.tensorboard=false", "log.wandb=true")


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Put the stand-in into the place of wandb, with a key; yield it."""
    with stand_in("wandb", tmp_path, monkeypatch) as module:
        monkeypatch.setenv("WANDB_API_KEY", "a key")
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("NETRC", raising=False)
        for known in (module.sessions, module.finished):
            known.clear()
        monkeypatch.setattr(module, "mode", None)
        yield module


@pytest.fixture
def elman(wandb: ModuleType, capfd: pytest.CaptureFixture[str]) -> Elman:
    """Return ``elman(*arguments)``: exit status and what it said."""
    return elman_said(capfd)


@pytest.mark.required
def test_equal_runs_in_folders_of_one_name_have_ids_of_their_own(
    elman: Elman, wandb: ModuleType
) -> None:
    for week in ("one", "two"):
        assert elman(*SETTINGS, f"hydra.run.dir={week}/01_e1")[0] == 0
    assert elman("train.resume=two/01_e1", "train.steps=3")[0] == 0
    first, second, resumed = [session["id"] for session in wandb.sessions]
    assert first != second == resumed
    assert result_of("two/01_e1")["wandb"] == {
        "id": second,
        "project": "elman",
        "offline": False,
        "problem": None,
    }
    assert wandb.finished == [(0, True)] * 3  # each after its result was written


def test_a_run_from_before_goes_on_with_the_id_that_it_had(tmp_path: Path) -> None:
    folder = tmp_path / "12-00-00_e1"
    (folder / "wandb").mkdir(parents=True)
    assert weights_and_biases.own_id(folder) == "12-00-00_e1"


def test_without_a_key_it_is_refused_before_the_start(
    elman: Elman, monkeypatch: pytest.MonkeyPatch, wandb: ModuleType
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    status, said = elman(*SETTINGS)
    assert status == 2
    assert said.startswith("elman: error: log.wandb=true: no API key is configured; type `wandb lo")
    assert not Path("outputs").exists()
    status, said = elman("-m", *SETTINGS, "train.seed=1,2")
    assert status == 2
    assert "no API key is configured" in said
    monkeypatch.setattr(wandb, "mode", "offline")  # needs none
    assert elman(*SETTINGS)[0] == 0
    monkeypatch.setattr(wandb, "mode", None)
    Path(".netrc").write_text("machine api.wandb.test login user password key\n")
    assert elman(*SETTINGS)[0] == 0


@pytest.mark.parametrize("name", ["a/b", "'what?'", "''", "'a%'", "x" * 129])
def test_a_name_that_no_project_can_have_is_refused(elman: Elman, name: str) -> None:
    status, said = elman(*SETTINGS, f"log.wandb_project={name}")
    assert (status, said.count("\n")) == (2, 1)
    assert said.startswith("elman: error: log.wandb_project=")


@pytest.mark.parametrize("kind", ["UsageError", "AuthenticationError"])
def test_a_key_that_is_refused_is_one_line_and_leaves_nothing(
    elman: Elman, wandb: ModuleType, kind: str
) -> None:
    wandb.failing["init"] = failing(getattr(wandb.errors, kind)("invalid key.\nDo this."))
    status, said = elman(*SETTINGS, "hydra.run.dir=run")
    assert status == 2
    (line,) = [line for line in said.splitlines() if "elman: " in line]
    assert line.startswith("elman: error: log.wandb=true: invalid key; drop log.wandb, or set")
    assert not Path("run").exists()


def test_a_refused_resume_leaves_the_run_as_it_was(elman: Elman, wandb: ModuleType) -> None:
    assert elman(*SETTINGS, "log.wandb=false", "hydra.run.dir=run")[0] == 0
    before = Path("run/metrics.jsonl").read_bytes(), Path("run/result.json").read_bytes()
    wandb.failing["init"] = failing(wandb.errors.UsageError("no"))
    assert elman("train.resume=run", "train.steps=3", "log.wandb=true")[0] == 2
    assert (Path("run/metrics.jsonl").read_bytes(), Path("run/result.json").read_bytes()) == before


def test_without_a_network_the_run_is_recorded_offline(elman: Elman, wandb: ModuleType) -> None:
    wandb.failing["init"] = failing(wandb.errors.CommError("no such host\nand more"))
    status, said = elman(*SETTINGS, "hydra.run.dir=run")
    assert status == 0
    assert "warning: Weights & Biases cannot be used (no such host); this session is rec" in said
    assert "`wandb sync " in said
    told = result_of("run")["wandb"]
    assert (told["offline"], told["problem"]) == (True, "no such host")
    assert [session.get("mode") for session in wandb.sessions] == ["offline"]


def test_a_run_goes_on_without_it_if_nothing_works(elman: Elman, wandb: ModuleType) -> None:
    wandb.failing["init"] = failing(RuntimeError("broken"))
    wandb.failing["offline"] = failing(RuntimeError("broken, too"))
    status, said = elman(*SETTINGS, "hydra.run.dir=run")
    assert status == 0
    assert "(broken; offline: broken, too); the run goes on without it" in said
    assert result_of("run")["wandb"]["problem"] == "broken"


def test_a_report_that_fails_on_the_way_is_dropped_and_recorded(
    elman: Elman, wandb: ModuleType
) -> None:
    wandb.failing["log"] = failing(RuntimeError("the service is gone"))
    status, said = elman(*SETTINGS, "hydra.run.dir=run")
    assert status == 0
    assert said.count("Weights & Biases gets no more numbers (the service is gone)") == 1
    result = result_of("run")
    assert (result["status"], result["wandb"]["problem"]) == ("ok", "the service is gone")


@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_a_failure_at_the_end_costs_nothing(
    elman: Elman, wandb: ModuleType, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(writer, "FINISH_SECONDS", 0.2)
    wandb.failing["finish"] = failing(RuntimeError("broken")) if how == "fails" else wandb.sleep
    status, said = elman(*SETTINGS, "hydra.run.dir=run", "log.plot=true")
    assert status == 0
    why = "broken" if how == "fails" else "not everything was sent within 0 s"
    assert f"warning: Weights & Biases: {why}; `wandb sync " in said
    assert result_of("run")["status"] == "ok"
    assert Path("run/loss.png").exists()


def test_a_failed_run_is_a_failed_run_there(
    elman: Elman, wandb: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert elman(*SETTINGS, "optim.lr=1e30", "train.grad_clip=0", "train.steps=30")[0] == 3
    assert wandb.finished == [(1, True)]
