"""Whole runs of the trainer: numbers, stops, resumption, non-finite values, memory."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import elman
from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.kernels import stalls
from elman.models.language_model import LanguageModel
from elman.modes import train_checks
from elman.training import loop
from elman.training import trainer as trainer_module
from elman.training.checkpoints.store import Checkpoint, find_checkpoint
from elman.training.training_state import TrainingState
from tests.training.stopping import stop_after

Train = Callable[..., object]


def same_weights(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def test_a_run_leaves_everything_about_it(train) -> None:
    run = train("log.tensorboard=true", "log.plot=true")
    assert run.status == ExitStatus.OK
    names = {path.name for path in run.folder.iterdir()}
    assert names >= {
        "config.yaml",
        "metrics.jsonl",
        "result.json",
        "checkpoints",
        "tensorboard",
        "loss.png",
    }
    assert (run.folder / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert list((run.folder / "tensorboard").glob("events.*"))
    result = run.result
    assert (result["status"], result["error"], result["contended"]) == ("ok", None, None)
    assert (result["steps"], result["tokens"]) == (6, 6 * 4 * 16)
    assert result["loss_steps"] == 6
    losses = [record["loss"] for record in run.records("step")]
    assert result["loss"] == pytest.approx(sum(losses) / 6)
    assert result["bpb"] == pytest.approx(result["loss"] / math.log(2))
    assert result["val_tokens"] == 256
    assert result["params"] == sum(w.numel() for w in run.weights().values())
    assert len(result["data"]["sha256"]) == 64
    assert result["environment"]["packages"]["torch"] == torch.__version__
    assert result["backend"] == "cpu"


def test_every_number_has_its_definition(train) -> None:
    result = train().result
    plain = {"loss_steps", "val_tokens", "val_step", "memory_estimate_bytes", "contended"}
    defined = set(result["definitions"]) | plain | {"reload_difference_bpb"}
    numbers = {key for key, value in result.items() if isinstance(value, int | float)}
    assert numbers <= defined


def test_the_loss_falls(train) -> None:
    run = train("train.steps=80", "optim.lr=0.01", "train.val_every=null")
    losses = [record["loss"] for record in run.records("step")]
    assert sum(losses[-10:]) / 10 < 0.5 * losses[0]
    assert run.result["val_bpb"] < 0.5 * 8


def test_same_seed_same_run_bit_for_bit_and_another_seed_another(train) -> None:
    first, again = train(folder="a"), train(folder="b")
    other = train("train.seed=7", folder="c")
    assert first.records("step") == again.records("step")
    assert same_weights(first.weights(), again.weights())
    assert first.records("step") != other.records("step")


def test_the_data_have_a_seed_of_their_own(train) -> None:
    usual, same = train(folder="usual"), train("train.data_seed=42", folder="same")
    assert usual.records("step") == same.records("step")
    other = train("train.data_seed=7", folder="other")
    assert usual.records("step")[0] != other.records("step")[0]

    def first_pass(state: TrainingState, display: object) -> float:
        started.append((state.model.state_dict(), state.batches.next().copy()))
        raise UserError("stopped by the test")

    started: list[tuple[dict[str, torch.Tensor], np.ndarray]] = []
    settings = (("1", "7"), ("1", "8"), ("2", "7"))
    for seed, of_data in settings:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trainer_module, "first_pass", first_pass)
            with pytest.raises(UserError, match="by the test"):
                train(f"train.seed={seed}", f"train.data_seed={of_data}", folder=seed + of_data)
    (first, rows), (weights, other_rows), (other_weights, again) = started
    assert same_weights(first, weights)
    assert not same_weights(first, other_weights)
    assert (rows == again).all()
    assert not (rows == other_rows).all()


RESUMED = {
    "adamw": [],
    "constant": ["optim.schedule=constant"],
    "muon": ["optim=muon"],
    "schedulefree": ["optim=schedulefree"],
    "legacy": ["optim=legacy"],
    "tbptt": ["train.tbptt=true", "model.use_conv=true"],
    "accumulation": ["train.grad_accum=2"],
    "dropout": ["model.dropout=0.3"],
    "recomputation": ["train.activation_checkpointing=true", "model.dropout=0.3"],
}


@pytest.mark.required
@pytest.mark.parametrize("overrides", RESUMED.values(), ids=RESUMED)
def test_resuming_is_bitwise_the_same_run(train, overrides: list[str]) -> None:
    whole = train("train.steps=9", *overrides, folder="whole")
    half = whole.folder.with_name("half")
    _cut_back(half, train, overrides)
    resumed = train("train.steps=9", f"train.resume={half}", *overrides, folder="half")
    after = [record for record in resumed.records("step") if record["step"] > 4]
    expected = [record for record in whole.records("step") if record["step"] > 4]
    assert after[-len(expected) :] == expected
    assert same_weights(whole.weights(), resumed.weights())
    assert resumed.result["loss"] == whole.result["loss"]
    assert resumed.result["val_bpb"] == whole.result["val_bpb"]


def _cut_back(folder: Path, train, overrides: list[str]) -> None:
    """Leave in ``folder`` what a run of nine steps that was stopped after the fourth leaves."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)

    with pytest.MonkeyPatch.context() as patch:
        stop_after(patch, 4)
        stopped = train("train.steps=9", *overrides, folder=folder.name)
    assert stopped.status == ExitStatus.FAILED
    assert stopped.result["status"] == "crash"
    assert "stopped by the test" in stopped.result["error"]


def test_earlier_results_are_kept_numbered(train) -> None:
    run = train("train.steps=3")
    again = train("train.steps=5", f"train.resume={run.folder}")
    assert again.result["steps"] == 5
    assert json.loads((run.folder / "result-001.json").read_text())["steps"] == 3
    assert [record["step"] for record in again.records("session")] == [0, 3]


def test_resuming_a_finished_run_says_what_to_name(train) -> None:
    run = train()
    with pytest.raises(UserError, match=r"budget is used up .* larger train\.steps"):
        train(f"train.resume={run.folder}")


def test_a_budget_smaller_than_what_was_done_does_not_finish_a_stopped_run(train) -> None:
    run = train("train.steps=1")
    _cut_back(run.folder, train, [])
    with pytest.raises(UserError, match=r"budget is used up \(4 steps, .* larger train\.steps"):
        train("train.steps=3", f"train.resume={run.folder}")


def test_init_from_takes_the_weights_and_nothing_else(train) -> None:
    source = train(folder="source")
    run = train(
        f"train.init_from={source.folder}",
        "optim=adamw",
        "train.steps=1",
        "optim.lr=1e-30",
        folder="new",
    )
    assert run.result["steps"] == 1
    for name, weight in run.weights().items():
        assert torch.allclose(weight, source.weights()[name], atol=1e-12)


def test_minutes_bound_a_run_and_validation_does_not_count(train) -> None:
    run = train("train.steps=null", "train.minutes=0.05", "train.val_every=20")
    assert run.status == ExitStatus.OK
    assert run.result["seconds"]["train"] >= 3.0
    assert run.result["seconds"]["validation"] > 0


def test_accumulated_loss_is_a_mean_per_byte(train) -> None:
    one = train("train.steps=1", folder="one").result["loss"]
    four = train("train.steps=1", "train.grad_accum=4", folder="four").result["loss"]
    assert four == pytest.approx(one, rel=0.1)


def test_a_non_finite_step_never_reaches_the_weights(train) -> None:
    # One step at this rate is finite and ruins the weights; the second step's loss is not finite.
    huge = ["optim.lr=1e30", "optim.warmup_steps=0", "optim.schedule=constant"]
    run = train(*huge, "train.steps=50", folder="huge")
    before = train(*huge, "train.steps=1", "data.val_sample=16", folder="one")
    assert run.status == ExitStatus.NON_FINITE
    assert run.result["status"] == "nan"
    assert run.result["steps"] == 1
    # Whether the loss is large and finite still, depends on the machine.
    assert re.fullmatch(
        r"the (loss|gradient) was not finite at step 2; the weights of step 1 are saved; try a "
        r"smaller optim\.lr \(3\.3e\+29 is a third\) or a longer optim\.warmup_steps",
        run.result["error"],
    )
    assert same_weights(run.weights(), before.weights())
    refused = run.records("step")[-1]
    assert (refused["step"], refused["applied"]) == (2, False)


def test_a_kernel_that_gave_up_is_named_instead_of_the_nan_it_leaves(
    train, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = LanguageModel.begin_step

    def spoil(model: LanguageModel) -> None:
        if model.training and not int(stalls.word(None)[0]):
            model.embedding.register_hook(lambda grad: grad * float("nan"))
            stalls.word(None).fill_(1)
        begin(model)

    monkeypatch.setattr(LanguageModel, "begin_step", spoil)
    run = train("train.steps=3", "optim.warmup_steps=1")
    assert run.status != ExitStatus.OK
    assert run.result["error"].startswith("kernels.backend=cuda: a kernel on GPU 0 waited 8 s for ")


@pytest.mark.parametrize("name", ["adamw", "muon", "schedulefree", "legacy"])
def test_a_nan_gradient_stops_the_run_with_the_weights_of_before(
    train, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    taken: list[int] = []
    begin = LanguageModel.begin_step

    def spoil(model: LanguageModel) -> None:
        taken.append(1)
        if len(taken) == 4:
            model.embedding.register_hook(lambda grad: grad * float("nan"))
        begin(model)

    good = train(f"optim={name}", "train.steps=3", "optim.warmup_steps=1", folder="good")
    monkeypatch.setattr(LanguageModel, "begin_step", spoil)
    bad = train(f"optim={name}", "train.steps=9", "optim.warmup_steps=1", folder="bad")
    assert (bad.status, bad.result["steps"]) == (ExitStatus.NON_FINITE, 3)
    assert bad.result["error"].startswith("the gradient was not finite at step 4; ")
    if name == "legacy" or name == "schedulefree":  # a cosine depends on the number of steps
        assert same_weights(good.weights(), bad.weights())
    assert all(torch.isfinite(weight).all() for weight in bad.weights().values())


def test_a_step_that_cannot_fit_ends_before_anything_is_allocated(
    train, monkeypatch: pytest.MonkeyPatch
) -> None:
    from elman.config.compose import compose_config
    from elman.training.memory.estimate import estimate_memory

    monkeypatch.setattr(train_checks, "available_memory", lambda device: 700 << 20)
    overrides = ("train.batch_size=512", "train.chunk_size=64")
    run = train(*overrides)
    assert run.status == ExitStatus.OUT_OF_MEMORY
    assert (run.result["status"], "steps" in run.result) == ("oom", False)
    message = run.result["error"]
    assert "a step of 512 rows of 64 bytes needs about" in message
    fits = int(message.split("train.batch_size=")[1].split()[0])
    assert 1 <= fits < 512
    assert f"train.grad_accum={512 // fits} " in message
    assert 512 % fits == 0
    tiny = ["model.dim=128", "model.depth=1", "model.n_heads=2", "model.n_state=8"]
    config = compose_config([*tiny, "train.chunk_size=64", f"train.batch_size={fits}"])
    assert estimate_memory(config).total <= 700 << 20


def test_running_out_of_memory_on_the_way_is_no_crash(
    train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    monkeypatch.setattr(loop, "take_step", exhausted)
    run = train()
    assert run.status == ExitStatus.OUT_OF_MEMORY
    assert "Tried to allocate" in run.result["error"]


def test_data_that_shrinks_under_a_run_is_one_clear_line(
    train, text_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = LanguageModel.begin_step

    def shrink(model: LanguageModel) -> None:
        with text_file.open("r+b") as stream:
            stream.truncate(100)
        begin(model)

    monkeypatch.setattr(LanguageModel, "begin_step", shrink)
    run = train()
    assert (run.status, run.result["status"]) == (ExitStatus.FAILED, "crash")
    assert "text.txt" in run.result["error"]
    assert "100" in run.result["error"]


SHRINKING = {
    "training bytes": ([], 100),
    "the held-out tail alone": (["train.val_every=1"], 65000),
    "the tail, at the last validation": ([], 65000),
    "within a step": (["train.grad_accum=3"], 100),
    "carried states": (["train.grad_accum=3", "train.tbptt=true"], 100),
}


@pytest.mark.required
@pytest.mark.parametrize(("overrides", "size"), SHRINKING.values(), ids=SHRINKING)
def test_what_was_trained_before_the_data_shrank_is_saved_and_goes_on(
    train, text_file: Path, monkeypatch: pytest.MonkeyPatch, overrides: list[str], size: int
) -> None:
    settings = ["train.val_every=null", "model.dropout=0.2", "model.use_conv=true", *overrides]
    whole = train(*settings, folder="whole")
    text, taken = text_file.read_bytes(), []
    begin = LanguageModel.begin_step

    def shrink(model: LanguageModel) -> None:
        taken.append(1)
        if len(taken) == 3:
            text_file.write_bytes(text[:size])
        begin(model)

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "begin_step", shrink)
        cut = train(*settings, folder="cut")
    assert (cut.status, cut.result["status"]) == (ExitStatus.FAILED, "crash")
    assert cut.result["error"].startswith(f"data.path={text_file}: shrank from 65536 bytes to ")
    done = cut.result["steps"]
    assert 2 <= done <= 6
    newest = find_checkpoint(cut.folder)
    assert newest.step == done
    assert same_weights(load_file(newest.path / "model.safetensors"), newest_weights(newest))

    text_file.write_bytes(text)
    # After the last step a resumed run only validates.
    resumed = train(*settings, f"train.resume={cut.folder}", folder="cut")
    assert resumed.status == ExitStatus.OK
    assert same_weights(whole.weights(), resumed.weights())
    assert [r for r in resumed.records("step") if r["step"] > done] == [
        r for r in whole.records("step") if r["step"] > done
    ]


def newest_weights(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Return the weights of a checkpoint as a model gets them."""
    return elman.load(checkpoint.path).state_dict()


def test_a_checkpoint_has_the_score_of_its_own_step_or_none(train) -> None:
    run = train(
        "train.steps=10", "train.val_every=3", "train.save_every=2", "train.keep_checkpoints=20"
    )
    scores = {record["step"]: record["val_bpb"] for record in run.records("validation")}
    assert sorted(scores) == [3, 6, 9, 10]
    saved = {
        meta["step"]: meta["val_bpb"]
        for path in (run.folder / "checkpoints").glob("step-*/meta.json")
        for meta in [json.loads(path.read_text())]
    }
    assert set(saved) >= {2, 4, 6, 8, 10}
    assert saved == {step: scores.get(step) for step in saved}
    best = find_checkpoint(run.folder / "checkpoints" / "best")
    assert best.val_bpb == min(value for value in saved.values() if value is not None)


def test_steps_end_a_run_that_has_minutes_left(train) -> None:
    run = train("train.steps=3", "train.minutes=0.5")
    assert (run.status, run.result["steps"]) == (ExitStatus.OK, 3)


def test_a_full_disk_at_the_end_is_not_called_ok(train, monkeypatch: pytest.MonkeyPatch) -> None:
    from elman.training.checkpoints import store

    usage = type("usage", (), {"free": 0})
    monkeypatch.setattr(store.shutil, "disk_usage", lambda folder: usage)
    run = train()
    assert (run.status, run.result["status"]) == (ExitStatus.FAILED, "crash")
    assert "0 MB free" in run.result["error"]
    assert run.result["steps"] == 6


def test_saved_weights_that_predict_otherwise_are_a_failure(
    train, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = trainer_module.Checkpoint.load_weights

    def wrong(checkpoint: trainer_module.Checkpoint, model: LanguageModel) -> None:
        kept(checkpoint, model)
        with torch.no_grad():
            model.embedding.add_(1.0)

    monkeypatch.setattr(trainer_module.Checkpoint, "load_weights", wrong)
    run = train()
    assert run.result["status"] == "crash"
    assert "the saved weights score" in run.result["error"]


def test_reloaded_weights_predict_exactly_the_same(train) -> None:
    assert train("optim=schedulefree").result["reload_difference_bpb"] == 0.0


def test_profile_writes_a_trace(train) -> None:
    run = train("train.profile=true", "train.steps=8")
    assert json.loads((run.folder / "profile.json").read_text())["traceEvents"]


def test_too_little_memory_for_one_row_names_other_remedies(
    train, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train_checks, "available_memory", lambda device: 1 << 20)
    assert "try train.activation_checkpointing=true or a smaller" in train().result["error"]


def test_resuming_on_other_bytes_is_refused(train, text_file: Path) -> None:
    run = train("train.steps=3")
    text_file.write_bytes(text_file.read_bytes()[::-1])
    with pytest.raises(UserError, match=r"data\.path: .*text\.txt differs from the data that"):
        train("train.steps=5", f"train.resume={run.folder}")
