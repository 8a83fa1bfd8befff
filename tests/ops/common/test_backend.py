"""The tables of backends: every engine has the same one."""

from __future__ import annotations

import importlib

import pytest
import torch

from elman.models.cells import registry
from elman.ops.common.backend import Backend

ENGINES = ("matrix_state", "channel", "dense", "tape", "ssd", "gated_delta", "channel_delta")
engines = pytest.mark.parametrize("engine", ENGINES)


def table(engine: str) -> dict[str, Backend]:
    return importlib.import_module(f"elman.ops.{engine}.backends").BACKENDS


@engines
def test_an_engine_has_every_backend_that_its_cells_declare(engine) -> None:
    declared = {
        name
        for cell in registry.cells().values()
        if cell.engine == engine and cell.layer.startswith("elman.")
        for name in (*cell.backends, *cell.on_request)
    }
    assert declared == table(engine).keys()


@engines
def test_only_kernels_of_a_gpu_write_narrow_outputs(engine) -> None:
    for name, backend in table(engine).items():
        on_gpu = name in ("cuda", "triton", "flash_qla")
        assert backend.io_dtype(torch.bfloat16) == (torch.bfloat16 if on_gpu else torch.float32)
        assert backend.io_dtype(torch.float64) == torch.float64
