"""Choice of the implementation that runs a recurrence."""

from __future__ import annotations

import dataclasses

import pytest

from elman.errors import UserError
from elman.kernels.backends import choose_backend
from elman.models import registry

E88 = registry.cell("e88")
ALL = dataclasses.replace(E88, backends=("reference", "cpu", "triton", "cuda"))


@pytest.mark.parametrize(
    ("requested", "device", "wanted"),
    [
        ("auto", "cpu", "cpu"),
        ("auto", "cuda", "cuda"),
        ("auto", "meta", "reference"),
        ("auto", "mps", "reference"),
        ("reference", "cuda", "reference"),
        ("triton", "cuda", "triton"),
    ],
)
def test_auto_takes_the_fastest_that_runs_here(requested, device, wanted) -> None:
    assert choose_backend(ALL, requested, device) == wanted


@pytest.mark.parametrize("device", ["cpu", "cuda", "meta", "mps"])
@pytest.mark.parametrize("name", ["gru", "llama", "lstm"])
def test_baselines_made_of_pytorchs_own_layers_run_those(name, device) -> None:
    for requested in ("auto", "torch"):
        assert choose_backend(registry.cell(name), requested, device) == "torch"


@pytest.mark.parametrize("device", ["cpu", "cuda", "meta"])
@pytest.mark.parametrize("name", ["e1", "e42", "e75", "e88"])
def test_cells_without_kernels_run_the_reference(name, device) -> None:
    cell = dataclasses.replace(registry.cell(name), backends=("reference",))
    assert choose_backend(cell, "auto", device) == "reference"


@pytest.mark.parametrize(
    ("cell", "requested", "device", "message"),
    [
        (
            dataclasses.replace(E88, backends=("reference",)),
            "cuda",
            "cuda",
            "kernels.backend=cuda: cell e88 has only reference; "
            "use kernels.backend=reference or kernels.backend=auto",
        ),
        (
            ALL,
            "cuda",
            "cpu",
            "kernels.backend=cuda: does not run on a cpu device; "
            "use kernels.backend=cpu or kernels.backend=auto",
        ),
        (
            ALL,
            "tritan",
            "cuda",
            "kernels.backend=tritan: no such backend (did you mean triton?); "
            "backends: auto, reference, cpu, cuda, triton, torch",
        ),
    ],
    ids=["not-there", "wrong-device", "misspelt"],
)
def test_an_impossible_backend_is_refused_with_what_to_type(
    cell, requested, device, message
) -> None:
    with pytest.raises(UserError) as caught:
        choose_backend(cell, requested, device)
    assert str(caught.value) == message
