"""``data.reset_at_documents``: no document sees the one before it, in training or validation."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

import elman
from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.config.compose import compose_config
from elman.data.text import open_data
from elman.data.windows import validation_batches
from elman.evaluation.generation import generate
from elman.models.build import build_model
from elman.models.language_model import LanguageModel
from elman.modes import eval as eval_mode
from elman.modes import train as train_mode
from elman.ops.channel import cpu, custom_op
from elman.ops.channel.custom_op import ChannelKernels
from elman.parity import gate
from elman.runs.prepared import PreparedRun
from elman.runs.resume import resumed_config
from elman.training.assembly import state_of
from elman.training.loop import forward_backward
from elman.training.optim.optimizers import TrainingOptimizer
from tests.training.tapes import play

ON = "data.reset_at_documents=true"
CONV = ("model.use_conv=true",)
E1 = ("model=e1", "model.dim=128", "model.depth=1", "model.use_conv=true")
SEPARATOR = 0x1E
CPU = torch.device("cpu")


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """Return JSON lines with many short documents, of 0 to 40 bytes."""
    path = tmp_path / "documents.jsonl"
    texts = ("def f(x):\n    return x + 1\n" * 2)[:52]
    lines = [json.dumps({"text": texts[n % 11 : n % 11 + n * 7 % 41]}) for n in range(800)]
    path.write_text("\n".join(lines))
    return path


def by_document(model: LanguageModel, rows: Tensor) -> float:
    """Return the mean loss of rows [b, t+1], every document passed by itself from nothing."""
    total, count = 0.0, 0
    model.requires_grad_(False)
    for row in rows:
        ends = [n + 1 for n in range(len(row) - 1) if row[n] == SEPARATOR]
        for begin, end in pairwise(sorted({0, *ends, len(row) - 1})):
            piece = row[None, begin : end + 1]
            total += float(model.loss(piece)[0]) * (end - begin)
            count += end - begin
    return total / count


# ---- what is computed


def test_val_bpb_is_that_of_documents_passed_one_by_one(train, documents: Path) -> None:
    run = train(*CONV, ON, f"data.path={documents}", "train.steps=3")
    assert run.status == ExitStatus.OK
    model = elman.load(run.folder)
    assert model.reset_after == SEPARATOR
    config = compose_config([f"data.path={documents}"]).data
    with open_data(config, 16, print) as data:
        windows = torch.cat(
            [torch.from_numpy(rows) for rows in validation_batches(data, 16, 256, 4)]
        )
    assert (windows == SEPARATOR).any()
    model.reset_after = None
    wanted = by_document(model, windows) / math.log(2)
    assert run.result["val_bpb"] == pytest.approx(wanted, rel=1e-5)
    carried = float(model.loss(windows)[0]) / math.log(2)
    assert abs(carried - wanted) > 1e-4  # otherwise this test could not fail


@pytest.mark.parametrize("tbptt", ["false", "true"])
def test_training_passes_every_document_by_itself(documents: Path, tbptt: str) -> None:
    """With carried states, documents that go on in the next batch do so from their own state."""
    settings = [*E1, ON, f"data.path={documents}", f"train.tbptt={tbptt}"]
    config = compose_config(
        [*settings, "train.chunk_size=16", "data.val_window=16", "train.batch_size=3"]
    )
    with open_data(config.data, 16, print) as data:
        torch.manual_seed(0)
        model = build_model(config.model, backend="reference", reset_after=config.data.reset_after)
        optimizer = TrainingOptimizer(config.optim, model)
        made = state_of(config, data, model, optimizer, CPU, graph=False)
        try:
            rows = [torch.from_numpy(made.batches.next()) for _ in range(3)]
            states, found = None, []
            for batch in rows:
                loss, states = forward_backward(made, batch, states)
                found.append(float(loss))
        finally:
            made.batches.close()
    model.reset_after = None
    with torch.no_grad():
        if tbptt == "true":
            whole = torch.cat([rows[0], *(batch[:, 1:] for batch in rows[1:])], dim=1)
            assert sum(found) / 3 == pytest.approx(by_document(model, whole), rel=1e-5)
        else:
            wanted = [by_document(model, batch) for batch in rows]
            assert found == pytest.approx(wanted, rel=1e-5)


def test_a_text_without_separators_trains_to_the_same_numbers(train) -> None:
    settings = (*CONV, "kernels.backend=reference", "train.tbptt=true", "optim=adamw")
    before, after = train(*settings, folder="off"), train(*settings, ON, folder="on")
    losses = [[step["loss"] for step in run.records("step")] for run in (before, after)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert after.result["val_bpb"] == pytest.approx(before.result["val_bpb"], rel=1e-5)


@pytest.mark.parametrize("tbptt", ["false", "true"])
def test_a_replayed_run_is_bitwise_the_eager_one(
    train, documents: Path, monkeypatch: pytest.MonkeyPatch, tbptt: str
) -> None:
    play(monkeypatch)
    monkeypatch.setattr(train_mode, "uses_graph", lambda config, _: config.train.graph is True)
    settings = (*CONV, ON, f"data.path={documents}", f"train.tbptt={tbptt}", "train.grad_accum=2")
    eager = train(*settings, "train.graph=false", folder="eager")
    replayed = train(*settings, "train.graph=true", folder="replayed")
    assert replayed.result["graph"]
    for name, weight in eager.weights().items():
        torch.testing.assert_close(replayed.weights()[name], weight, rtol=0, atol=0)
    assert replayed.records("step") == eager.records("step")


def test_generation_forgets_at_a_separator(train, documents: Path) -> None:
    run = train(*CONV, ON, f"data.path={documents}", "train.steps=3")
    model = elman.load(run.folder)
    alone = list(generate(model, b"\x1edef", 12, temperature=0))
    assert list(generate(model, b"return\x1edef", 12, temperature=0)) == alone


# ---- what is recorded, and what is refused


def test_a_number_has_its_definition_beside_it(train, documents: Path, capsys) -> None:
    run = train(*CONV, ON, f"data.path={documents}")
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "state zeroed after each 0x1e" in said
    assert "state zeroed after each document" in said
    assert run.result["data"]["reset_at_documents"] is True
    assert "data.reset_at_documents" in run.result["definitions"]["val_bpb"]
    off = train(*CONV, f"data.path={documents}", folder="off")
    assert off.result["data"]["reset_at_documents"] is False
    assert "zeroed" not in capsys.readouterr().out


def test_eval_scores_as_the_run_did_and_says_so(train, documents: Path, capsys) -> None:
    run = train(*CONV, ON, f"data.path={documents}")
    capsys.readouterr()
    eval_mode.run(PreparedRun(compose_config(["mode=eval", f"eval.checkpoint={run.folder}"])))
    said = capsys.readouterr().out
    assert f"{run.result['val_bpb']:.6f}" in said
    file = ["mode=eval", f"eval.checkpoint={run.folder}", f"eval.path={documents}"]
    eval_mode.run(PreparedRun(compose_config(file)))
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "each from zero state, also zero after each byte 0x1e" in said


def test_a_resumed_run_keeps_it(train, documents: Path) -> None:
    run = train(*CONV, ON, f"data.path={documents}", "train.steps=2", "train.tbptt=true")
    again = train(
        *CONV,
        ON,
        f"data.path={documents}",
        "train.steps=4",
        "train.tbptt=true",
        f"train.resume={run.folder}",
    )
    assert again.result["data"]["reset_at_documents"] is True
    whole = train(
        *CONV, ON, f"data.path={documents}", "train.steps=4", "train.tbptt=true", folder="whole"
    )
    assert again.result["val_bpb"] == pytest.approx(whole.result["val_bpb"], rel=1e-3)


@pytest.mark.parametrize(("stored", "asked"), [(True, False), (False, True), (None, True)])
def test_a_resumed_run_cannot_change_it(tmp_path: Path, train, stored, asked) -> None:
    """Also not one from before there was the setting."""
    run = train(*CONV, f"data.reset_at_documents={stored or False}", "train.steps=1")
    if stored is None:
        path = run.folder / "config.yaml"
        path.write_text(path.read_text().replace("  reset_at_documents: false\n", ""))
        assert "reset_at" not in path.read_text()
    before, wanted = (str(value).lower() for value in (stored or False, asked))
    key, named = f"data.reset_at_documents={wanted}", frozenset({"data.reset_at_documents"})
    config = compose_config([f"train.resume={run.folder}", key])
    with pytest.raises(UserError) as caught:
        resumed_config(config, {"data": {"reset_at_documents": asked}}, named)
    assert str(caught.value) == (
        f"data.reset_at_documents={wanted}: the run to resume has {before}, and its numbers before "
        "and after would differ in meaning; drop it, or start a new run from those weights with "
        f"train.init_from={run.folder}"
    )
    same = {"data": {"reset_at_documents": stored or False}}
    assert resumed_config(config, same, named).data.reset_at_documents is (stored or False)


@pytest.mark.parametrize("model", ["mamba2", "fla-gdn", "llama", "e23"])
def test_a_model_that_cannot_is_refused_before_anything_is_built(model: str) -> None:
    with pytest.raises(
        UserError,
        match=r"^data.reset_at_documents=true: not with cell \w+: .*; "
        "drop it, or choose another model$",
    ):
        compose_config([f"model={model}", ON])


# ---- the check before a run


@pytest.mark.compiler
def test_a_kernel_that_ignores_resets_lets_no_run_start(
    documents: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the same cell was checked without them: those are other kernels."""
    monkeypatch.setattr(gate, "kernel_cache", lambda: tmp_path / "cache")
    small = ["model=e61", "model.dim=128", "model.depth=1", "train.steps=1", "train.batch_size=2"]
    sizes = ["train.chunk_size=16", "data.val_window=16", "data.val_sample=64"]

    def trained(*more: str) -> tuple[ExitStatus, str]:
        place = tmp_path / f"run{len(more)}"
        place.mkdir()
        config = compose_config([*small, *sizes, f"data.path={documents}", *more])
        status = train_mode.run(PreparedRun(config, place))
        return status, str(json.loads((place / "result.json").read_text())["error"])

    def deaf(call):
        return cpu.forward(call._replace(resets_bt=None))

    monkeypatch.setitem(custom_op.KERNELS, "cpu", ChannelKernels(deaf, cpu.backward))
    assert trained() == (ExitStatus.OK, "None")
    status, error = trained(ON)
    assert status == ExitStatus.FAILED
    assert "the cpu kernel of e61 is wrong on this machine" in error
