"""Flags: in any order, each with what belongs to it."""

from __future__ import annotations

import pytest

from elman.base.errors import UserError
from elman.cli.flags import parse
from elman.config.compose import compose_config


@pytest.mark.parametrize(
    ("typed", "for_hydra"),
    [
        ("model=a -m x=1,2", "--multirun model=a x=1,2"),
        ("x=1 --cfg job -p train y=2", "--cfg job --package train x=1 y=2"),
        ("x=1 -c=job", "--cfg job x=1"),
        ("x=1 --config-dir=mine y=2 -cn other", "--config-dir mine --config-name other x=1 y=2"),
        ("x=1 --info y=2", "--info all x=1 y=2"),
        ("--info searchpath y=2", "--info searchpath y=2"),
        ("-sc query=bash", "--shell-completion query=bash"),
        ("-m -- x=1", "--multirun x=1"),
        ("~x +y=1", "~x +y=1"),
        ("", ""),
    ],
)
def test_flags_move_before_the_overrides(typed: str, for_hydra: str) -> None:
    assert " ".join(parse(typed.split()).for_hydra) == for_hydra


def test_a_folder_keeps_its_blanks() -> None:
    assert parse(["--config-dir", "my files", "-m"]).search_flags == ["--config-dir", "my files"]


@pytest.mark.parametrize(
    "prompt",
    ["def ", "print(x, 'y') == {", "Grüße, [", r"a\${b}", "3"],
)
def test_a_prompt_is_read_as_typed(prompt: str) -> None:
    typed = parse(["mode=generate", "generate.checkpoint=run", f"generate.prompt={prompt}"])
    config = compose_config(typed.overrides)
    assert config.generate is not None
    assert config.generate.prompt == prompt


@pytest.mark.parametrize(
    ("typed", "prompt"), [("'def '", "def "), ("[def,class]", ["def", "class"]), ("", "")]
)
def test_a_quoted_prompt_and_a_list_of_prompts_stay_what_they_are(
    typed: str, prompt: str | list[str]
) -> None:
    overrides = parse([f"generate.prompt={typed}"]).overrides
    config = compose_config(["mode=generate", "generate.checkpoint=run", *overrides])
    assert config.generate is not None
    assert config.generate.prompt == prompt


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("--batch-size 4", "did you mean train.batch_size=4?"),
        ("--train.batch_size=4", "did you mean train.batch_size=4?"),
        ("--multrun", "did you mean --multirun?"),
        ("-z", "--help"),
        ("--cfg", "type --cfg job|hydra|all"),
        ("--cfg -m", "type --cfg job|hydra|all"),
        ("--cfg jbo", "did you mean job?"),
        ("-m --run", "give only one of them"),
        ("--multirun=3", "takes no value"),
        ("--experimental-rerun x.pickle", "unknown flag"),
    ],
)
def test_wrong_flags_are_one_line(typed: str, message: str) -> None:
    with pytest.raises(UserError) as refusal:
        parse(typed.split())
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
