"""Every cell passes through every part of the probe, and the page shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from elman.base.exit_status import RunStatus
from elman.models.build import build_model
from elman.models.cells import registry
from elman.models.cells.common.mixer import Mixer
from elman.probe.kept import KeptParts
from elman.probe.measure import MEASUREMENTS, Subject, measure
from elman.probe.result import DEFINITIONS, ProbeResult
from elman.report.probe.page import page_text, plots_of
from elman.report.probe.views import views_of
from elman.sections.model import ModelConfig
from elman.sections.probe import PARTS
from tests.probe.hand_set import letters, reader_of, text_of

# Options that make a cell small enough, or fit into so narrow a model.
OPTIONS: dict[str, dict[str, object]] = {
    "llama": {"context": 16, "head_dim": 16},
    "e88": {"n_heads": 2, "n_state": 8, "use_conv": True},
}


def small_model(cell: str) -> ModelConfig:
    """Return a model of one or two layers of a cell."""
    declared = registry.cell(cell)
    given = OPTIONS.get(cell, {})
    return ModelConfig(
        name=cell,
        cell=cell,
        dim=128,
        depth=2,
        wrapper="rms",
        expected_params=None,
        options=declared.parse_options(128, given),
    )


@pytest.mark.parametrize("cell", sorted(registry.cells()))
def test_every_cell_is_probed_and_shown(
    cell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path / "cache"))
    config = small_model(cell)
    backend = registry.cell(cell).backends[0]
    reader = reader_of(build_model(config, backend=backend).eval(), trained=16, positions=600)
    subject = Subject(reader, text_of(tmp_path, letters(64, documents=2)), seed=1)
    read: list[tuple[int, int]] = []
    result = ProbeResult(
        status=RunStatus.OK,
        checkpoint="/runs/one/checkpoints/step-0000001",
        step=1,
        model=cell,
        cell=cell,
        params=reader.model.num_params(),
        trained_length=16,
        length=64,
        documents=2,
        text="letters",
        device="a CPU",
        precision="fp32",
        definitions=DEFINITIONS,
    )
    kept = KeptParts({"cell": cell})
    measure(subject, PARTS, result, kept, lambda part: None, lambda *work: read.append(work))
    assert result.problems == {}
    assert set(MEASUREMENTS) == set(PARTS) == set(result.seconds)
    assert result.state is not None
    assert result.state.bytes
    tree = json.loads(json.dumps(result.model_dump(), allow_nan=False))
    (view,) = views_of([tree])
    assert view.result == result
    page = page_text([view])
    shown = [plot.picture.name for plot in plots_of([view])]
    assert all(f'id="{name}"' in page for name in shown)
    assert len(set(shown)) == len(shown)
    (layer, *_) = reader.model.layers
    assert isinstance(layer, Mixer)
    x_btd = torch.randn(1, 2, 128)
    tells = layer.applied_decay(x_btd) is not None
    assert (f"{cell}: no decay" in page) != tells
