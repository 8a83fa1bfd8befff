"""``mode=models``: the list is what the files say, and one model is explained whole."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from elman.config.catalog import Listed, catalog, natural
from elman.config.compose import compose_config
from elman.config.model_files import folder_of, model_files
from elman.models.cells import registry
from elman.published import published, published_for

FILES = model_files()
Elman = Callable[..., tuple[int, str, str]]
CELL = """
from elman.models.cells.declaration import Cell, Option

CELL = Cell(
    name="mine",
    engine="dense",
    layer="my_cell:Mine",
    equation="h = x",
    source="my paper",
    options={"gain": Option(1.5, "a number", minimum=0)},
)
"""
LAYER = (
    CELL
    + """
import torch

class Mine(torch.nn.Module):
    def __init__(self, dim, gain=1.5, backend="auto", device=None, dtype=None):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(dim, device=device, dtype=dtype))
"""
)


@cache
def shipped() -> dict[str, Listed]:
    """Return every shipped model by name."""
    return {listed.name: listed for listed in catalog()}


def rows(output: str) -> dict[str, list[str]]:
    """Return the list's cells by name."""
    lines = [[cell.strip() for cell in line.split("│")] for line in output.splitlines()]
    return {line[0]: line for line in lines if len(line) == 8}


def own_files(folder: Path, **texts: str) -> None:
    """Write model files of the user's own."""
    models = folder / "it's mine" / "model"
    models.mkdir(parents=True)
    for name, text in texts.items():
        (models / f"{name}.yaml").write_text(text)


def test_architectures_are_listed_with_what_their_files_say(
    elman_here: Elman, tmp_path: Path
) -> None:
    status, output, errors = elman_here("mode=models")
    assert (status, errors) == (0, "")
    found = rows(output)
    top = {name for name, file in FILES.items() if not folder_of(file)}
    assert list(found) == sorted(top, key=natural)
    assert f"lists also {len(FILES) - len(top)} sizes of published comparisons" in output
    assert found["e75h4n32"] == [
        "e75h4n32",
        "e75",
        "1920 x 20",
        "4 x 32",
        "98,838,400",
        "16,384",
        "-",
        "E75, 4 heads of 32 x 32: suite e75_100m of 2026-01-19 (seed 004).",
    ]
    assert found["e68"][1:5] == ["e68", "640 x 20", "-", "98,583,680"]
    assert found["llama"][5:7] == ["0", "2,560"]
    assert list(tmp_path.iterdir()) == []


def test_published_sizes_follow_on_request(elman_here: Elman) -> None:
    _, output, _ = elman_here("mode=models", "models.sizes=true")
    assert list(rows(output)) == [one.name for one in catalog()]
    assert set(rows(output)) == set(FILES)
    _, output, _ = elman_here("mode=models", "models.filter=e88_ablation")
    ablations = [name for name, file in FILES.items() if folder_of(file) == "e88_ablation"]
    assert set(ablations) == set(rows(output))


@pytest.mark.parametrize("choice", ["e88a_nogate_1792x20", "e88_ablation/e88a_nogate_1792x20"])
def test_a_published_size_has_one_name(choice: str) -> None:
    model = compose_config([f"model={choice}"]).model
    assert model == shipped()["e88a_nogate_1792x20"].config


def test_every_name_is_that_of_one_file() -> None:
    top = FILES["e1"].parent
    files = list(top.rglob("*.yaml"))
    assert len(files) == len(FILES)
    folders = {file.parent.name for file in files if file.parent != top}
    described = re.findall(r"^\| `(\w+)` \|", (top / "README.md").read_text(), re.MULTILINE)
    assert described == sorted(folders)


# Every fifteenth file, and those that say something unusual.
SAMPLE = [path for n, path in enumerate(sorted(FILES.values())) if n % 15 == 0]
SAMPLE += [path for path in FILES.values() if "override" in path.read_text()]


@pytest.mark.parametrize("name", [path.stem for path in SAMPLE])
def test_a_listed_model_is_the_one_that_hydra_composes(name: str) -> None:
    listed = shipped()[name].config
    assert listed is not None
    # A listed model has the vocabulary of its file; that of a run follows its data.
    composed = compose_config([f"model={name}"]).model.with_vocabulary(listed.vocab_size)
    assert listed == composed


@pytest.mark.parametrize(
    ("text", "some"),
    [("e75h6", {"e75h6n24", "e75h6n32"}), ("E14", {"e14"}), ("seed 001", {"e70", "e73"})],
    ids=["name", "upper case", "source"],
)
def test_the_filter_looks_at_name_cell_and_source(
    elman_here: Elman, text: str, some: set[str]
) -> None:
    status, output, _ = elman_here("mode=models", f"models.filter='{text}'")
    assert status == 0
    found = rows(output)
    assert some <= set(found)
    for row in found.values():
        assert any(text.lower() in row[column].lower() for column in (0, 1, 7))
    assert f"{len(found)} models;" in output


def test_the_list_needs_no_torch(tmp_path: Path) -> None:
    code = "import sys; from elman.cli.main import main; main(['mode=models'] + sys.argv[1:]); "
    code += "print('torch' in sys.modules)"
    for arguments in ([], ["model=e68"]):
        ended = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=tmp_path
        )
        assert ended.stdout.splitlines()[-1] == "False", ended.stderr


def test_files_of_the_users_own_are_listed_counted_or_said_to_be_wrong(
    elman_here: Elman, tmp_path: Path
) -> None:
    head = "defaults: [/cell/e1@_here_, _self_]\n"
    own_files(
        tmp_path,
        plain=f"# My first.\n{head}dim: 384\ndepth: 3\n",
        child="defaults: [plain, _self_]\ndepth: 4\n",
        computed=f"{head}dim: 384\ndepth: ${{train.keep_checkpoints}}\n",
        packaged=f"# @package model\n{head}dim: 384\ndepth: 3\n",
        tokens=f"# With 1000.\n{head}dim: 384\ndepth: 3\nvocab_size: 1000\n",
        packaged_tokens=f"# @package model\n{head}dim: 384\ndepth: 3\nvocab_size: 1000\n",
        misspelled=f"# Wrong.\n{head}dim: 384\ndepth: 3\nexpnsion: 2.0\n",
        broken="dim: 256\ndepth: [2\n",
        e1=f"{head}dim: 128\ndepth: 1\n",
    )
    status, output, errors = elman_here("--config-dir", "it's mine", "mode=models")
    assert (status, errors) == (0, "")
    found = rows(output)
    # 256 d + depth (3 d d + 2 d d + d + d) + d at d = 384
    layer = 5 * 384**2 + 2 * 384
    for name, depth, vocabulary, source in (
        ("plain", 3, 256, "My first."),
        ("child", 4, 256, ""),
        ("computed", 2, 256, ""),
        ("packaged", 3, 256, "@package model"),
        ("tokens", 3, 1000, "With 1000."),
        ("packaged_tokens", 3, 1000, "@package model"),
    ):
        params = f"{(vocabulary + 1) * 384 + depth * layer:,}"
        sizes = [f"384 x {depth}", "-", params, "1,536", "-"]
        assert found[name][1:] == ["e1", *sizes, source], name
    assert found["e1"][2] == "640 x 20"  # the shipped file is found first, as in any command
    assert found["misspelled"][1:7] == ["-"] * 6
    assert "model.expnsion: cell e1 does not read it" in found["misspelled"][7]
    assert "broken.yaml, line 3: not valid YAML" in found["broken"][7]
    status, explained, _ = elman_here("--config-dir", "it's mine", "mode=models", "model=plain")
    assert status == 0
    assert "My first." in explained.splitlines()
    assert "Nothing published" in explained


def test_a_cell_of_another_package_is_listed_and_explained(tmp_path: Path) -> None:
    (tmp_path / "my_cell.py").write_text(LAYER)
    metadata = tmp_path / "my_cell-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-cell\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[elman.cells]\nmine = my_cell:CELL\n")
    own_files(tmp_path, own="defaults: [/cell/mine@_here_, _self_]\ndim: 384\ndepth: 3\n")

    def elman(*arguments: str) -> str:
        ended = subprocess.run(
            [sys.executable, "-m", "elman", "--config-dir", "it's mine", "mode=models", *arguments],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(tmp_path)},
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        return ended.stdout

    # 256 d + 3 (d + d) + d
    assert rows(elman("models.filter=own"))["own"][1:5] == ["mine", "384 x 3", "-", "100,992"]
    explained = elman("model=own", "model.gain=2")
    assert "h = x" in explained
    assert "my paper" in explained
    cells = [[cell.strip() for cell in line.split("│")] for line in explained.splitlines()]
    option = ["model.gain", "2.0", "1.5", "number, at least 0", "a number", "always"]
    assert option in cells


def test_a_model_is_explained_with_its_options_and_what_was_published(elman_here: Elman) -> None:
    status, output, errors = elman_here("mode=models", "model=e68")
    assert (status, errors) == (0, "")
    cell, text = registry.cell("e68"), " ".join(output.replace("│", " ").split())
    assert cell.equation in text
    assert cell.source in text
    assert "dim 640, depth 20, 98,583,680 parameters" in text
    for name, option in cell.options.items():
        assert f"model.{name} " in text
        assert option.doc.split(",")[0].split(":")[0] in text
    assert "inverse" in text  # a choice
    assert "use_conv=true" in text  # what an option needs
    lines = [[cell.strip() for cell in line.split("│")] for line in output.splitlines()]
    (row,) = [line for line in lines if line[:2] == ["100m_10min", "2026-01-14"]]
    assert row[2:6] == ["1.44", "-", "3,047", "-"]
    assert "one window of 10 steps" in text
    assert "the order of this table is noise" in text


def test_an_explanation_counts_the_model_that_was_asked_for(elman_here: Elman) -> None:
    _, output, _ = elman_here("mode=models", "model=e1", "model.depth=2", "model.expansion=1.0")
    assert f"depth 2, {257 * 640 + 2 * (5 * 640**2 + 2 * 640):,} parameters" in output


def test_an_explanation_counts_the_vocabulary_of_the_data_and_of_the_file(
    elman_here: Elman,
) -> None:
    _, output, _ = elman_here("mode=models", "model=e88_h370n32_1664x12")
    wide = 1_273_191_856
    narrow = wide - (50281 - 256) * 1664
    assert f"{narrow:,} parameters with 256 tokens, {wide:,} with the 50,281 of its file" in output
    _, output, _ = elman_here("mode=models", "model=e1", "data=parity", "model.expansion=1.0")
    assert f"{3 * 640 + 20 * (5 * 640**2 + 2 * 640):,} parameters with 2 tokens" in output
    status, _, errors = elman_here("mode=models", "data=parity")
    assert (status, errors.count("\n")) == (2, 1)
    assert "data: mode=models reads it only for a named model" in errors


def test_a_sweep_explains_every_model(elman_here: Elman) -> None:
    status, output, _ = elman_here("-m", "mode=models", "model=e1,e42")
    assert status == 0
    assert [output.count(registry.cell(name).equation) for name in ("e1", "e42")] == [1, 1]


def test_every_published_figure_belongs_to_a_model_and_was_printed_for_its_count() -> None:
    seen = set()
    for record in published():
        figures = record.figures
        config = shipped()[figures.model].config
        assert config is not None
        if figures.params is not None:
            other = f"{figures.params:,}" in figures.caveat
            assert other or figures.params == config.expected_params, figures
        else:
            said = ("not recorded", "printed as", "the size of each model")
            assert any(words in " ".join(record.caveats.split()) for words in said), figures
        printed = (figures.loss, figures.accuracy)
        measured = (figures.tok_s, figures.memory_gb, figures.step_us)
        assert any(printed) or any(measured) or "NaN" in figures.caveat
        assert figures.loss is None or record.of.definition
        task = (figures.task, figures.length)
        key = (figures.model, record.of.suite, task, figures.caveat)
        assert key not in seen, "a repeated run says which it is"
        seen.add(key)
    assert len(seen) > 250


@pytest.mark.parametrize(
    ("model", "suite", "loss", "tok_s", "steps"),
    [
        ("e1_1280x6_legacy", "e23_comparison", 1.4082, 201_600, 3692),
        ("e4_512x7_e4_legacy", "e4_comparison", 1.665, 5_900, 2000),
        ("e37v2_1280x6", "simplification", 1.5759, 121_000, None),
        ("e42_1536x6", "e42_vs_baselines", 1.59, 137_000, None),
        ("e65", "100m_10min", 1.63, None, 3233),
        ("e65", "100m_10min_again", 1.762, 82_400, 3120),
        ("e61", "100m_10min_summary", 1.351, 88_000, None),
        ("e75h8n24", "e75_100m", 1.6655, 67_900, 2580),
        ("e88f_h24n24", "e88_nstate", 1.5219, 65_000, 2460),
        ("e88_h48n32_3968x20", "mega_500m", 2.0236, 15_000, 570),
        ("e74n48_1536x20_e2", "e74_nstate", 1.667, 52_000, None),
    ],
)
def test_figures_copied_from_the_tables_a_second_time(
    model: str, suite: str, loss: float, tok_s: float | None, steps: int | None
) -> None:
    (figures,) = [r.figures for r in published_for(model) if r.of.suite == suite]
    assert (figures.loss, figures.tok_s, figures.steps) == (loss, tok_s, steps)
