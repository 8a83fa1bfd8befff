"""libyaml reads Hydra's files as OmegaConf's own loader does, and dies of none."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from elman.base.yaml_file import FAST_LOADER, parsed_yaml
from elman.config.compose import compose_tree
from elman.config.yaml_loader import omegaconf_with_libyaml


@pytest.fixture(autouse=True)
def _libyaml() -> None:
    omegaconf_with_libyaml()


def test_values_are_those_of_omegaconf(tmp_path: Path) -> None:
    """1e3 is a number, a date is a text, and yes is true, as without libyaml."""
    file = tmp_path / "one.yaml"
    file.write_text("a: 1e3\nb: 2026-01-31\nc: yes\nd: 1_000\ne: [1.5, null]\nf: ${a}\n")
    assert OmegaConf.to_container(OmegaConf.load(file)) == {
        "a": 1000.0,
        "b": "2026-01-31",
        "c": True,
        "d": 1000,
        "e": [1.5, None],
        "f": "${a}",
    }


def test_a_key_that_stands_twice_is_refused_with_the_name_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "twice.yaml"
    file.write_text("a: 1\na: 2\n")
    with pytest.raises(yaml.constructor.ConstructorError, match="duplicate key a") as caught:
        OmegaConf.load(file)
    assert caught.value.problem_mark is not None
    assert (caught.value.problem_mark.name, caught.value.problem_mark.line) == (str(file), 1)


@pytest.mark.parametrize("level", ["[", "{a: ", "- "], ids=["list", "map", "block"])
def test_a_file_nested_without_end_is_an_error_and_no_crash(level: str, tmp_path: Path) -> None:
    text = 200_000 * level
    with pytest.raises((RecursionError, yaml.YAMLError)):
        parsed_yaml(text)
    file = tmp_path / "deep.yaml"
    file.write_text(text)
    with pytest.raises((RecursionError, yaml.YAMLError)):
        OmegaConf.load(file)


def test_hydra_parses_with_libyaml(monkeypatch: pytest.MonkeyPatch) -> None:
    if FAST_LOADER is yaml.SafeLoader:
        pytest.skip("PyYAML has no libyaml here")
    compose_tree()

    def slow(*given: object) -> None:
        raise AssertionError("Python's own parser")

    monkeypatch.setattr(yaml.SafeLoader, "__init__", slow)
    assert OmegaConf.create("a: 1").a == 1
