"""Choice of the implementation that runs a recurrence."""

from __future__ import annotations

import dataclasses

import pytest

from elman.base.errors import UserError
from elman.kernels import nvrtc
from elman.models.backends import choose_backend
from elman.models.cells import registry

E88 = registry.cell("e88")
ALL = dataclasses.replace(E88, backends=("reference", "cpu", "triton", "cuda"))


@pytest.fixture(autouse=True)
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing stand in the way of CUDA kernels."""
    monkeypatch.setattr(nvrtc, "cuda_problem", lambda: None)


@pytest.mark.compiler
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
        # A transformer on a GPU has kernels of ours around PyTorch's attention.
        ours = (name, device, requested) == ("llama", "cuda", "auto")
        assert choose_backend(registry.cell(name), requested, device) == (
            "cuda" if ours else "torch"
        )


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


@pytest.mark.parametrize("requested", ["auto", "cuda"])
def test_a_gpu_whose_kernels_cannot_run_is_no_reason_to_be_slow(requested, monkeypatch) -> None:
    monkeypatch.setattr(nvrtc, "cuda_problem", lambda: "the driver is old; update it")
    with pytest.raises(UserError) as caught:
        choose_backend(E88, requested, "cuda")
    assert str(caught.value) == (
        "kernels.backend=cuda: the driver is old; update it, or use kernels.backend=reference"
    )
    assert choose_backend(E88, "reference", "cuda") == "reference"
    assert choose_backend(E88, "cuda", "meta") == "cuda"


def test_every_cell_has_cuda_where_it_has_cpu() -> None:
    """But for the transformer, whose CPU has PyTorch's own kernels alone."""
    cells = [cell for cell in registry.cells().values() if cell.name != "llama"]
    compiled = {c.name for c in cells if "cuda" in c.backends}
    assert compiled == {c.name for c in cells if "cpu" in c.backends}
    engines = {c.engine for c in cells if "cuda" in c.backends}
    assert engines == {"matrix_state", "channel", "dense", "tape"}
    assert all(c.backends == ("reference", "cpu", "cuda") for c in cells if "cuda" in c.backends)


def test_a_transformer_without_our_kernels_is_told_to_use_pytorch(monkeypatch) -> None:
    monkeypatch.setattr("elman.kernels.nvrtc.cuda_problem", lambda: "the driver is old")
    llama = registry.cell("llama")
    assert llama.backends == ("torch", "cuda")
    assert choose_backend(llama, "auto", "cpu") == "torch"
    with pytest.raises(UserError) as caught:
        choose_backend(llama, "auto", "cuda")
    assert str(caught.value) == (
        "kernels.backend=cuda: the driver is old, or use kernels.backend=torch"
    )


def test_options_without_kernels_run_the_reference_on_a_gpu() -> None:
    cell = registry.cell("e74")
    values = {name: option.default for name, option in cell.options.items()}
    limited = cell.under(values | {"nonlinearity": "rmsnorm"})
    assert choose_backend(limited, "auto", "cuda") == "reference"
    with pytest.raises(UserError, match=r"only reference \(model.nonlinearity=rmsnorm"):
        choose_backend(limited, "cuda", "cuda")
