"""The typed schema and the door to it: what it takes, what it refuses, what it says."""

from __future__ import annotations

import copy

import pytest
from hydra import initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from pydantic import ValidationError

from elman.base.errors import UserError
from elman.config.compose import compose_config, compose_tree
from elman.config.keys import named_keys
from elman.config.run_config import MODES, RunConfig, flatten, size_keys
from elman.config.suggestions import known_keys
from elman.config.validate import validate
from elman.sections.training import TrainConfig


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["model=e1", "optim=schedulefree"],
        ["model=e75h4n16", "optim=legacy", "train.minutes=2", "train.steps=7"],
        ["mode=eval", "eval.checkpoint=run"],
        ["mode=generate", "generate.checkpoint=run", "generate.prompt='a = 1, \\'b\\''"],
    ],
    ids=lambda overrides: " ".join(overrides) or "default",
)
def test_flattening_and_validation_are_inverse(overrides: list[str]) -> None:
    config = compose_config(overrides)
    assert validate(flatten(config)) == config


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        compose_config().train.steps = 3


@pytest.mark.parametrize(
    ("minutes", "steps", "budget"),
    [(None, None, 1.0), (None, 5, None), (2.5, None, 2.5), (2.5, 5, 2.5)],
)
def test_a_run_without_a_budget_lasts_one_minute(
    minutes: float | None, steps: int | None, budget: float | None
) -> None:
    train = TrainConfig(minutes=minutes, steps=steps, batch_size=1, chunk_size=1, seed=0)
    assert train.budget_minutes == budget


def test_whole_numbers_pass_for_numbers_but_not_the_other_way() -> None:
    assert compose_config(["train.minutes=3", "optim.lr=1"]).train.minutes == 3.0
    for wrong in ("train.steps=3.5", "train.steps=true", "train.tbptt=1", "train.minutes='3'"):
        with pytest.raises(UserError, match="expected"):
            compose_config([wrong])


@pytest.mark.parametrize(
    ("dim", "advice"), [(64, "use 128,"), (300, "use 256 or 384,"), (1000, "use 896 or 1024,")]
)
def test_an_unaligned_width_is_refused_unless_asked_for(dim: int, advice: str) -> None:
    with pytest.raises(UserError, match=advice):
        compose_config([f"model.dim={dim}"])
    config = compose_config([f"model.dim={dim}", "model.allow_unaligned=true"])
    assert config.model.dim == dim


def test_the_expected_count_holds_only_while_no_size_is_named() -> None:
    assert compose_config(["model=e1"]).model.expected_params == 114890880
    assert compose_config(["model=e1", "model.dropout=0.1"]).model.expected_params == 114890880
    for size in ("model.depth=2", "model.expansion=1.5", "model.wrapper=legacy_ln"):
        assert compose_config(["model=e1", size]).model.expected_params is None
        assert size.split("=")[0] in size_keys("e1")


def test_known_keys_are_those_of_what_was_chosen() -> None:
    everything = set(known_keys())
    assert {"model.n_heads", "optim.schedule", "eval.path", "train.steps"} <= everything
    tree = {"mode": "train", "model": {"cell": "e1"}, "optim": {"name": "legacy"}}
    chosen = set(known_keys(tree))
    assert chosen < everything
    assert not chosen & {"model.n_heads", "optim.schedule", "eval.path"}
    assert {"model.recurrent_gain", "optim.lr", "train.steps"} <= chosen


def test_every_key_of_the_files_is_known() -> None:
    modes = [[f"mode={mode}"] for mode in MODES]
    for overrides in ([], *modes, ["optim=legacy"], ["model=e42"]):
        tree = compose_tree(overrides)
        typed = {
            f"{section}.{key}"
            for section in RunConfig.model_fields
            if section != "mode" and section in tree
            for key in tree[section]
        }
        assert typed <= set(known_keys())


# What a mode cannot do without.
NEEDED = {
    "eval": ["eval.checkpoint=run"],
    "generate": ["generate.checkpoint=run"],
    "export": ["export.checkpoint=run", "export.to=out"],
    "solve": ["solve.params=1M"],
    "models": ["model=e1"],
    "probe": ["probe.checkpoint=run"],
    "report": ["report.dir=run"],
    "verdict": ["verdict.a=run", "verdict.b=run"],
}


@pytest.mark.parametrize("mode", MODES)
def test_a_section_is_refused_in_the_modes_that_do_not_read_it(mode: str) -> None:
    needed = NEEDED.get(mode, [])
    keys = {"train": "train.steps=3", "data": "data.val_bytes=9", "log": "log.every=3"}
    keys |= {"kernels": "kernels.backend=cpu", "optim": "optim=legacy", "model": "model.depth=3"}
    for section, override in keys.items():
        overrides = [f"mode={mode}", *needed, override]
        if section in MODES[mode].reads:
            compose_config(overrides)
        else:
            with pytest.raises(UserError, match=rf"^{section}\S*: read only with mode=train"):
                compose_config(overrides)


def test_named_keys_are_those_of_the_job() -> None:
    typed = ["train.steps=3", "+a.b=1", "++c=2", "~d", "model=e1", "hydra.run.dir=x", "hydra/a=b"]
    assert named_keys(typed) == {"train.steps", "a.b", "c", "d", "model"}


def test_composing_leaves_a_command_that_is_running_alone() -> None:
    with initialize_config_module("elman.conf", version_base="1.3"):
        running = GlobalHydra.instance().hydra
        compose_config(["train.steps=3"])
        assert GlobalHydra.instance().hydra is running


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("train.minute=3", r"train\.minute=3: no such setting; did you mean train\.minutes=3\?"),
        ("model=e2", r"model=e2: no such model; did you mean model=e"),
        ("train.steps==3", r"one = too many; type train\.steps=3"),
        ("train.steps=1,2", "several values need -m"),
        (
            "mode=probe probe.parts=loss,memory",
            r"for one list type 'probe\.parts=\[loss,memory\]'$",
        ),
    ],
)
def test_the_python_door_speaks_as_the_command_does(override: str, line: str) -> None:
    with pytest.raises(UserError, match=line) as refusal:
        compose_config(override.split())
    assert "\n" not in str(refusal.value)


def test_a_limit_is_written_out() -> None:
    with pytest.raises(UserError, match=r"=4294967296: must be at most 4294967295$"):
        compose_config(["train.seed=4294967296"])
    assert compose_config(["train.seed=4294967295"]).train.seed == 4294967295


def test_a_composition_copies_no_cell_and_leaves_every_one_as_it_was() -> None:
    compose_config()
    store = ConfigStore.instance()
    assert copy.deepcopy(store) is store
    declared = copy.deepcopy(store.load("cell/e1.yaml").node)
    before = compose_config(["model=e1"])
    assert compose_config(["model=e1", "model.expansion=1.5", "model.use_conv=true"]) != before
    assert compose_config(["model=e1"]) == before
    assert store.load("cell/e1.yaml").node == declared


@pytest.mark.parametrize(
    ("override", "path"),
    [
        ("train.steps=1e4", "train.steps"),
        ("train.seed=1e4", "train.seed"),
        ("train.bytes=1e9", "train.bytes"),
        ("model.dim=1.28e2", "model.dim"),
        ("optim.warmup_steps=1e2", "optim.warmup_steps"),
        ("log.every=1e1", "log.every"),
    ],
)
def test_a_whole_number_may_be_typed_with_an_exponent(override: str, path: str) -> None:
    section, name = path.split(".")
    found = getattr(getattr(compose_config([override]), section), name)
    assert (found, type(found)) == (round(float(override.partition("=")[2])), int)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("data.path=123", "data.path=123: expected text; quote it: \"data.path='123'\""),
        (
            "data.path=2024_01",
            "data.path=2024_01: expected text; quote it: \"data.path='2024_01'\"",
        ),
        ("data.path=true", "data.path=true: expected text; quote it: \"data.path='true'\""),
        ("data.path=[a,12]", "data.path=12: expected text; quote it: \"data.path=['12',...]\""),
        (
            "log.wandb_project=3",
            "log.wandb_project=3: expected text; quote it: \"log.wandb_project='3'\"",
        ),
        ("train.resume=1e5", "train.resume=1e5: expected text; quote it: \"train.resume='1e5'\""),
        ("train.steps=1.5", "train.steps=1.5: expected a whole number"),
    ],
)
def test_text_that_looks_like_a_number_is_refused_with_its_quotes(override: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        compose_config([override])
    assert str(caught.value) == line
    if "quote it" in line:
        compose_config([line.rpartition(": ")[2].strip('"').replace(",...", "")])


@pytest.mark.parametrize(("typed", "found"), [("1.0", "1.0"), ("1", "1.0"), ("0.5", "0.5")])
def test_a_choice_that_looks_like_a_number_is_typed_like_one(typed: str, found: str) -> None:
    config = compose_config(["model=mamba3", f"model.rope_fraction={typed}"])
    assert config.model.options["rope_fraction"] == found


def test_every_choice_of_every_option_can_be_typed_and_another_value_names_them() -> None:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from elman.models.cells import registry

    parser = OverridesParser.create()
    for cell in registry.cells().values():
        for name, option in cell.options.items():
            for choice in option.choices:
                value = parser.parse_override(f"{name}={choice}").value()
                assert option.parse(name, value) == choice
            if option.choices:
                with pytest.raises(UserError, match="expected one of"):
                    option.parse(name, 17)
