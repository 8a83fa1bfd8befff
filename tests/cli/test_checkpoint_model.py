"""``train.init_from`` without ``model=`` takes the checkpoint's model; another one is compared."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from elman.cli.main import main
from elman.training.checkpoints.loading import load
from tests.small_run import TEXT, Elman, elman_said

SMALL = (
    "train.steps=1",
    "train.batch_size=2",
    "train.chunk_size=16",
    "data.val_sample=64",
    "data.val_window=16",
    "log.tensorboard=false",
)
MODEL = ("model=e75h4n16", "model.dim=128", "model.depth=1")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that holds a finished run and its text."""
    place = tmp_path_factory.mktemp("finished")
    (place / "text.txt").write_bytes(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main([*MODEL, *SMALL, "data.path=text.txt", "hydra.run.dir=run"]) == 0
    return place


@pytest.fixture
def elman(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> Elman:
    """Return ``elman(*arguments)`` beside that run: exit status and what it said."""
    monkeypatch.chdir(finished)
    return elman_said(capfd, *SMALL, "data.path=text.txt", f"hydra.run.dir={tmp_path}/new")


def config_of(run: Path) -> dict:
    tree: dict = yaml.safe_load((run / "config.yaml").read_text())
    return tree


@pytest.mark.parametrize("place", ["run", "run/checkpoints", "run/checkpoints/best", "'run'"])
def test_the_checkpoint_names_the_model(
    elman: Elman, finished: Path, tmp_path: Path, place: str
) -> None:
    status, said = elman(f"train.init_from={place}")
    assert status == 0, said
    now, before = config_of(tmp_path / "new"), config_of(finished / "run")
    assert now["model"] == before["model"]
    assert now["optim"] == before["optim"]  # not the recipe of the default model


def test_it_trains_on_other_data_with_another_rate_and_other_rows(
    finished: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(finished)
    elman = elman_said(capfd)
    (tmp_path / "poem.txt").write_text("Shall I compare thee to a summer's day?\n" * 99)
    small = [text for text in SMALL if not text.startswith("train.chunk_size=")]
    other = (f"data.path={tmp_path}/poem.txt", "optim.lr=1e-5", "train.chunk_size=40")
    status, said = elman("train.init_from=run", *small, *other, f"hydra.run.dir={tmp_path}/new")
    assert status == 0, said
    assert "weights: those of run/checkpoints/step-" in said
    now, before = config_of(tmp_path / "new"), config_of(finished / "run")
    assert now["model"] == before["model"]
    assert (now["optim"]["lr"], now["train"]["chunk_size"]) == (1e-5, 40)
    assert now["data"]["path"] != before["data"]["path"]
    status, said = elman("mode=report", f"report.dir={tmp_path}/new", f"report.out={tmp_path}/out")
    table = (tmp_path / "out" / "report.md").read_text()
    assert "from weights" in table
    assert "began from trained weights (train.init_from): run in e75h4n16" in table.replace(
        "\\", ""
    )


def test_settings_of_the_model_can_be_named_beside_it(elman: Elman, tmp_path: Path) -> None:
    status, said = elman("train.init_from=run", "model.dropout=0.1")
    assert status == 0, said
    model = config_of(tmp_path / "new")["model"]
    assert (model["name"], model["dim"], model["dropout"]) == ("e75h4n16", 128, 0.1)
    assert "the checkpoint's model differs from model=e75h4n16 (dropout 0.0 and 0.1)" in said


def test_a_model_that_does_not_fit_is_one_line_that_says_what_differs(
    elman: Elman, tmp_path: Path
) -> None:
    status, said = elman("train.init_from=run", "model=e1", "model.dim=256", "model.depth=1")
    (line,) = [line for line in said.splitlines() if line.startswith("elman: error")]
    assert status == 2
    assert line.startswith("elman: error: train.init_from=run: its weights do not fit model=e1")
    assert "(cell e75 and e1, dim 128 and 256); drop" in line
    assert not (tmp_path / "new").exists()


def test_only_the_option_that_differs_is_named(elman: Elman, tmp_path: Path) -> None:
    option = "model.use_conv=true"
    status, said = elman("train.init_from=run", option)
    assert status == 2
    assert "the checkpoint's model differs from it (use_conv false and true); drop" in said


def test_a_task_has_another_vocabulary(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(finished)
    settings = ["data=parity", "train.steps=1", f"hydra.run.dir={tmp_path}/new"]
    assert main(["train.init_from=run", *settings]) == 2
    assert "(vocab_size 256 and " in capfd.readouterr().err


@pytest.fixture
def with_tokens(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Return settings of a run on other text than that of a run with learned tokens."""
    pytest.importorskip("tokenizers")
    monkeypatch.chdir(finished)
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    poem = "Shall I compare thee to a summer's day?\nThou art more lovely, and more temperate.\n"
    (finished / "poem.txt").write_text(poem * 99)
    if not (finished / "tokens").exists():
        tokens = ("data.path=text.txt", "data.tokenizer=bpe", "data.vocab_size=264")
        assert main([*MODEL, *SMALL, *tokens, "hydra.run.dir=tokens"]) == 0
    return (*SMALL, f"hydra.run.dir={tmp_path}/new", "data.path=poem.txt")


@pytest.mark.parametrize("place", ["tokens", "tokens/checkpoints", "tokens/checkpoints/best"])
def test_the_checkpoint_brings_its_tokens(
    with_tokens: tuple[str, ...], tmp_path: Path, place: str
) -> None:
    assert main([f"train.init_from={place}", *with_tokens]) == 0
    before, now = load("tokens").tokenizer, load(tmp_path / "new").tokenizer
    assert before is not None
    assert now.fingerprint == before.fingerprint


@pytest.mark.parametrize(
    ("place", "settings", "why"),
    [
        # As many tokens, learned from another text, so that the weights fit.
        ("tokens", ("data.tokenizer=bpe", "data.vocab_size=264"), "those of bpe of 264; type"),
        (
            "tokens",
            ("data.tokenizer=bytes",),
            "bytes; type data.tokenizer=tokens/checkpoints/step-",
        ),
        ("tokens", MODEL, "bytes; type data.tokenizer=tokens/checkpoints/step-"),
        ("run", ("data.tokenizer=bpe", "data.vocab_size=264"), "type data.tokenizer=bytes to take"),
    ],
)
def test_other_tokens_than_the_checkpoint_has_are_refused(
    with_tokens: tuple[str, ...],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    place: str,
    settings: tuple[str, ...],
    why: str,
) -> None:
    assert main([f"train.init_from={place}", *with_tokens, *settings]) == 2
    (line,) = [one for one in capfd.readouterr().err.splitlines() if "elman: error" in one]
    assert f"train.init_from={place}: its weights were trained with other tokens than " in line
    assert why in line
    assert not (tmp_path / "new").exists()


def test_jobs_of_a_sweep_take_it_too(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(finished)
    arguments = ["train.init_from=run", "train.seed=1,2", "data.path=text.txt", *SMALL]
    assert main(["-m", *arguments, "sweep.dry_run=true"]) == 0
    out = capfd.readouterr().out
    assert out.count("model=e75h4n16 model.dim=128 model.depth=1 train.init_from=run") == 2


def test_runs_with_other_models_are_not_one_sweep(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(finished)
    other = finished / "other"
    other.mkdir(exist_ok=True)
    tree = config_of(finished / "run")
    tree["model"]["dim"] = 256
    tree["model"]["expected_params"] = None
    (other / "config.yaml").write_text(yaml.safe_dump(tree))
    assert main(["-m", "train.init_from=run,other", "sweep.dry_run=true", *SMALL]) == 2
    said = capfd.readouterr().err
    assert "train.init_from: the models of run and other differ (dim 128 and 256)" in said


def test_the_shown_configuration_has_the_model(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(finished)
    assert main(["train.init_from=run", "--cfg", "job"]) == 0
    assert yaml.safe_load(capfd.readouterr().out)["model"]["cell"] == "e75"
