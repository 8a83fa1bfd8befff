"""``model.layers``: what it means, and the line for every way to get it wrong."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from elman.base.errors import UserError
from elman.cli.checkpoint_model import with_checkpoint_model
from elman.cli.flags import Arguments
from elman.config.compose import compose_config
from elman.config.run_config import flatten
from elman.config.validate import validate

GDN = ("model=fla-gdn", "model.dim=128", "model.depth=8")
THREE_AND_ONE = "model.layers=[fla_gdn,fla_gdn,fla_gdn,{cell:e88,n_heads:4,n_state:8}]"


def cells(*overrides: str) -> list[str]:
    """Return the cell of every layer."""
    return [entry.cell for entry in compose_config([*GDN, *overrides]).model.stack()]


def test_a_list_is_repeated_over_the_depth() -> None:
    assert cells(THREE_AND_ONE) == ["fla_gdn", "fla_gdn", "fla_gdn", "e88"] * 2


def test_places_are_counted_from_zero_and_leave_the_rest_to_the_models_cell() -> None:
    found = cells("model.layers=[{cell:e88,at:[3,7]},{cell:llama,at:0}]")
    assert found == ["llama", *["fla_gdn"] * 2, "e88", *["fla_gdn"] * 3, "e88"]


def test_places_replace_what_the_list_says() -> None:
    found = cells("model.layers=[fla_gdn,e88,{cell:llama,at:[7]}]")
    assert found == ["fla_gdn", "e88"] * 3 + ["fla_gdn", "llama"]


def test_a_cell_may_be_typed_as_models_are_called() -> None:
    assert cells("model.layers=[fla-gdn,e88]") == ["fla_gdn", "e88"] * 4


def test_options_of_the_model_are_those_of_its_own_cell_unless_an_entry_says_more() -> None:
    model = compose_config(
        [*GDN, "model.expansion=1", "model.layers=[fla_gdn,{cell:fla_gdn,use_conv:false},e88,e88]"]
    ).model
    first, second, other = model.parts()
    assert (first.options["expansion"], first.options["use_conv"]) == (1.0, True)
    assert (second.options["expansion"], second.options["use_conv"]) == (1.0, False)
    assert (other.cell, other.options["use_conv"], other.depth) == ("e88", False, 4)


def test_the_mlp_of_the_model_is_that_of_every_layer_but_those_that_say_or_have_their_own() -> None:
    model = compose_config(
        [*GDN, "model.mlp_ratio=2", "model.layers=[fla_gdn,{cell:e88,mlp_ratio:0},llama,e88]"]
    ).model
    found = {(part.cell, part.mlp_ratio): part.depth for part in model.parts()}
    assert found == {("fla_gdn", 2): 2, ("e88", 0): 2, ("llama", 0): 2, ("e88", 2): 2}


def test_what_is_written_reads_back_as_the_same_model() -> None:
    config = compose_config([*GDN, "model.mlp_ratio=1", THREE_AND_ONE])
    written = yaml.safe_load(yaml.safe_dump(flatten(config)))
    assert validate(written).model == config.model


def test_a_model_of_one_cell_is_written_without_layers() -> None:
    assert "layers" not in flatten(compose_config(GDN))["model"]
    assert compose_config([*GDN, "model.layers=null"]) == compose_config(GDN)


def test_the_count_of_the_file_is_not_expected_of_other_layers() -> None:
    assert compose_config(["model=fla-gdn"]).model.expected_params is not None
    mixed = compose_config(["model=fla-gdn", "model.layers=[fla_gdn,e88]"]).model
    assert mixed.expected_params is None


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        (["model.layers=[fla_gdn,e89]"], "model.layers, entry 1: e89: unknown cell (did you mean "),
        (
            ["model.layers=[fla_gdn,fla_gdn,e88]"],
            "model.depth=8: not a multiple of the 3 layers of model.layers, which are repeated "
            "over the depth; use model.depth=6 or 9, or name places by at",
        ),
        (
            ["model.layers=[{cell:e88,at:[8]}]"],
            "model.layers: e88 at 8: the layers of model.depth=8 are 0 to 7",
        ),
        (
            ["model.layers=[{cell:e88,at:[1]},{cell:llama,at:[1]}]"],
            "model.layers: llama at 1: layer 1 is named twice; drop one",
        ),
        (
            ["model.layers=[e88,llama]"],
            "model.layers: names no layer of model.cell=fla_gdn, so nothing would read that cell's "
            "options; add it to the list, or choose a model of a cell in the list",
        ),
        (
            ["model.layers=[fla_gdn,{cell:e88,n_staet:3}]"],
            "model.layers, entry 1: n_staet: cell e88 does not read it (did you mean n_state?)",
        ),
        (
            ["model.layers=[fla_gdn,{cell:e88,att:3}]"],
            "model.layers, entry 1: att: no such key; did you mean at?",
        ),
        (
            ["model.layers=[fla_gdn,{cell:e88,n_state:0}]"],
            "model.layers, entry 1: n_state=0: must be at least 1",
        ),
        (
            ["model.layers=[fla_gdn,{cell:e88,d_conv:5}]"],
            "model.layers, entry 1: d_conv=5: read only with use_conv=true; add use_conv=true or "
            "drop d_conv",
        ),
        (
            ["model.expansion=1", "model.layers=[e88,{cell:fla_gdn,expansion:2}]"],
            "model.expansion: every entry of model.layers says its own; drop it here",
        ),
        (
            ["model.mlp_ratio=1", "model.layers=[{cell:fla_gdn,mlp_ratio:2},llama]"],
            "model.mlp_ratio: every entry of model.layers says its own; drop it here",
        ),
        (
            ["model.layers=[fla_gdn,{cell:llama,mlp_ratio:2}]"],
            "model.layers, entry 1: mlp_ratio=2: cell llama has an MLP of its own; use "
            "mlp_width=<channels> or drop mlp_ratio",
        ),
        (
            ["model.layers=[fla_gdn,{cel:e88}]"],
            "model.layers, entry 1: {'cel': 'e88'}: expected ",
        ),
        (["model.layers=[]"], "model.layers=[]: expected a list, as in [fla_gdn,e88]"),
        (
            ["model.layers=[fla_gdn,{cell:e88,at:[0,1,2,3,4,5,6,7]}]"],
            "model.layers: places take every layer of model.cell=fla_gdn, so nothing would read "
            "that cell's options; leave it a layer, or choose a model of a cell in the list",
        ),
        (["model.layers=[{cell:e88,at:[-1]}]"], "model.layers.at=-1: must be at least 0"),
        (["model.layers=[{cell:e88,at:1.5}]"], "model.layers.at=1.5: expected a whole number"),
        (
            ["model.wrapper=legacy_ln", "model.layers=[fla_gdn,{cell:e88,mlp_ratio:1}]"],
            "model.mlp_ratio=1: the MLP has an RMSNorm, which model.wrapper=legacy_ln has not",
        ),
        (
            ["data.reset_at_documents=true", "model.layers=[fla_gdn,llama]"],
            "data.reset_at_documents=true: not with cell fla_gdn: ",
        ),
        (
            ["model=e1", "data.reset_at_documents=true", "model.layers=[e1,llama]"],
            "data.reset_at_documents=true: not with cell llama: its attention sees every position "
            "before; drop it, or leave llama out of model.layers",
        ),
        (
            ["model.n_state=16", "model.layers=[fla_gdn,e88]"],
            "model.n_state: cell fla_gdn does not read it; options of other cells stand in their "
            "entries of model.layers, as in {cell: e88, n_state: 32}",
        ),
        (
            ["model.context=16", "model.layers=[fla_gdn,{cell:llama,head_dim:32}]"],
            "model.context: cell fla_gdn does not read it; options of other cells stand in their "
            "entries of model.layers, as in {cell: llama, context: 0}",
        ),
        (
            ["model.wrapper=legacy_ln", "model.layers=[fla_gdn,llama]"],
            "model.wrapper=legacy_ln: cell llama has RMSNorms of its own; use model.wrapper=rms",
        ),
        (
            ["train.tbptt=true", "model.layers=[fla_gdn,llama]"],
            "train.tbptt=true: a carried attention over every byte so far grows without end; add "
            "the limit in model.layers, as in {cell: llama, context: 2048}, or drop train.tbptt",
        ),
        (
            [
                "train.tbptt=true",
                "train.graph=true",
                "model.layers=[fla_gdn,{cell:llama,context:999}]",
            ],
            "train.graph=true: with train.tbptt=true and context:999 for llama in model.layers the "
            "carried states grow from chunk to chunk; use context:513 or less, or train.graph=auto",
        ),
        (
            [
                "mode=solve",
                "solve.params=1M",
                "solve.over=n_heads",
                "model.layers=[{cell:fla_gdn,n_heads:1},{cell:fla_gdn,n_heads:2}]",
            ],
            "solve.over=n_heads: every entry of model.layers says its own n_heads; choose from "
            "dim, depth, expansion",
        ),
    ],
)
def test_every_mistake_is_one_line(overrides: Sequence[str], line: str) -> None:
    with pytest.raises(UserError) as caught:
        compose_config([*GDN, *overrides])
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_a_run_that_starts_from_a_mixed_stack_has_its_layers(tmp_path: Path) -> None:
    config = compose_config([*GDN, THREE_AND_ONE])
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(flatten(config)))
    start = f"train.init_from={tmp_path}"
    found = with_checkpoint_model(Arguments(overrides=[start])).overrides
    assert compose_config(found).model == config.model
