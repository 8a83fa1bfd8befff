"""A run of a mixed stack through every mode: each one knows all its layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import elman as package
from elman.base.yaml_file import read_yaml
from elman.cli.main import main
from tests.small_run import E1, TEXT, Elman

LAYERS = "[e1,{cell:e1,expansion:1},{cell:llama,head_dim:32,mlp_width:64,context:16},mingru]"
MODEL = (*E1, "model.depth=4", f"model.layers={LAYERS}")
SMALL = (*MODEL, "data.path=text.txt", "log.tensorboard=false", "train.tbptt=true")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("finished")
    (place / "text.txt").write_bytes(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main([*SMALL, "train.steps=4", "train.save_every=2", "hydra.run.dir=run"]) == 0
        assert main([*SMALL, "train.steps=6", "hydra.run.dir=whole"]) == 0
    return place / "run"


def result_of(run: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((run / "result.json").read_text())
    return result


def weights(run: Path) -> dict[str, torch.Tensor]:
    return package.load(str(run)).state_dict()


def test_the_result_names_every_cell_and_what_computed_it(run: Path) -> None:
    result = result_of(run)
    assert result["cell"] == "e1+llama+mingru"
    assert result["params"] == package.load(str(run)).num_params()
    assert result["backend"].split("+")[2] == "torch"
    assert result["flops_per_byte"] > 0
    assert result["state_bytes_per_byte"] == 2 * 128 * 4 // 4


def test_a_resumed_run_has_the_bits_of_one_that_never_stopped(
    elman: Elman, run: Path, finished: Path
) -> None:
    """With carried states: those of the attention grow in the first steps."""
    (run.parent / "text.txt").write_bytes(TEXT)
    assert elman("train.resume=run", "train.steps=6")[0] == 0
    whole, again = weights(finished.parent / "whole"), weights(run)
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)


def test_layers_edited_in_the_configuration_are_refused(elman: Elman, run: Path) -> None:
    config = run / "config.yaml"
    text = config.read_text()
    assert text.count("mlp_width: 64") == 1
    config.write_text(text.replace("mlp_width: 64", "mlp_width: 128"))
    status, said = elman("train.resume=run", "train.steps=6")
    assert (status, said.count("\n")) == (2, 1)
    assert "(model: layer 2 mlp_width 64 and 128)" in said


def test_weights_of_layers_in_another_order_are_refused(elman: Elman, run: Path) -> None:
    (run.parent / "text.txt").write_bytes(TEXT)
    other = "model.layers=[e1,{cell:e1,expansion:1},mingru,{cell:llama,context:16}]"
    status, said = elman(*SMALL[:-1], other, "train.init_from=run", "train.steps=1")
    assert (status, said.count("\n")) == (2, 1)
    assert "(layer 2 llama and mingru)" in said


def test_text_is_continued_from_the_states_of_all_layers(elman: Elman, run: Path) -> None:
    """The states are saved to a file and read back, between two halves of one text."""
    asked = ("mode=generate", "generate.checkpoint=run", "generate.temperature=0")
    status, whole = elman(*asked, "generate.max_bytes=40", "generate.prompt=def ")
    assert status == 0
    half = (*asked, "generate.max_bytes=20")
    status, first = elman(*half, "generate.prompt=def ", "generate.save_state=state")
    assert status == 0
    status, second = elman(*half, "generate.state=state")
    assert status == 0
    text, begin, end = (
        said.rpartition("elman: ")[0].rstrip("\n") for said in (whole, first, second)
    )
    assert text == begin + end


def test_held_out_text_is_scored(elman: Elman, run: Path) -> None:
    (run.parent / "text.txt").write_bytes(TEXT)
    assert elman("mode=eval", "eval.checkpoint=run")[0] == 0


def test_an_exported_stack_gives_the_logits_of_the_run(elman: Elman, run: Path) -> None:
    assert elman("mode=export", "export.checkpoint=run", "export.to=out")[0] == 0
    tokens = torch.arange(40).view(2, 20)
    assert torch.equal(package.load("out")(tokens)[0], package.load("run")(tokens)[0])
    assert json.loads(Path("out/config.json").read_text())["num_hidden_layers"] == 4
    assert "e1+llama+mingru" in Path("out/README.md").read_text()


def test_a_probe_looks_at_every_layer(elman: Elman, run: Path) -> None:
    (run.parent / "text.txt").write_bytes(TEXT)
    sizes = ("probe.length=100", "probe.documents=2")
    status, said = elman("mode=probe", "probe.checkpoint=run", *sizes, "hydra.run.dir=probe")
    assert status == 0, said
    found = json.loads(Path("probe/probe.json").read_text())
    assert found["cell"] == "e1+llama+mingru"
    assert len(found["state"]["layers"]) == 4


def test_a_probe_leaves_every_attention_its_own_limit(elman: Elman, run: Path) -> None:
    """Of two limits the shorter one is not raised to the longer, unless it is asked for."""
    (run.parent / "text.txt").write_bytes(TEXT)
    layers = (
        "[e1,{cell:llama,head_dim:32,mlp_width:64,context:2},{cell:llama,head_dim:32,context:64}]"
    )
    small = (*E1, "model.depth=3", f"model.layers={layers}", "data.path=text.txt")
    trained = (*small, "optim.lr=0.01", "optim.warmup_steps=1", "train.steps=6")
    assert elman(*trained, "log.tensorboard=false", "hydra.run.dir=two")[0] == 0
    bits = {}
    for name, more in {"own": (), "longest": ("probe.window=64",)}.items():
        asked = ("probe.length=100", "probe.documents=2", "probe.parts=[loss]", *more)
        status, said = elman("mode=probe", "probe.checkpoint=two", *asked, f"hydra.run.dir={name}")
        assert status == 0, said
        found = json.loads(Path(name, "probe.json").read_text())
        assert found["window"] == 64
        bits[name] = found["loss"]["by_context"]["mean"][0]
    assert bits["own"] != bits["longest"]


def test_a_report_shows_both_stacks(elman: Elman, run: Path, finished: Path) -> None:
    status, said = elman("mode=report", f"report.dir={finished.parent}", "report.out=page")
    assert status == 0, said


def test_every_kind_of_layer_is_checked_against_the_reference(
    elman: Elman, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [one for one in MODEL if one.startswith("model")]
    status, _ = elman("mode=parity", *arguments, "parity.quick=true", "hydra.run.dir=p")
    assert status == 0
    found = json.loads(Path("p/parity.json").read_text())
    assert {one["part"] for one in found["checks"]} == {"e1", "llama", "mingru", "add_norm"}


def test_the_list_explains_the_stack_and_solve_sizes_it(elman: Elman) -> None:
    model = [one for one in MODEL if one.startswith("model") and "model.dim" not in one]
    status, said = elman("mode=models", *model)
    assert status == 0
    words = " ".join(said.split())
    assert "layers e1 at 0; e1 expansion=1.0 at 1; llama at 2; mingru elsewhere" in words
    status, said = elman("mode=solve", *model, "solve.params=2M")
    assert status == 0
    assert f"model.layers={LAYERS}" in said


def test_the_recorded_configuration_is_complete(run: Path) -> None:
    section = read_yaml(run / "config.yaml")["model"]
    assert section["layers"][0] == "e1"
    assert section["layers"][1] == {"cell": "e1", "expansion": 1.0}
    assert {"head_dim", "mlp_width", "rope_theta", "context"} < section["layers"][2].keys()
