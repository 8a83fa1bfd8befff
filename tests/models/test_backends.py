"""Choice of the implementation that runs a recurrence."""

from __future__ import annotations

import dataclasses

import pytest

from elman.base.errors import UserError
from elman.kernels import driver
from elman.models import backends
from elman.models.backends import choose_backend, norm_backend
from elman.models.cells import registry

E88 = registry.cell("e88")
ALL = E88
MAMBA2 = registry.cell("mamba2")


@pytest.fixture(autouse=True)
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing stand in the way of kernels for a GPU."""
    monkeypatch.setattr(driver, "cuda_problem", lambda: None)
    monkeypatch.setattr(backends, "triton_problem", lambda: None)


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


@pytest.mark.compiler
@pytest.mark.parametrize("device", ["cpu", "cuda", "meta", "mps"])
@pytest.mark.parametrize("name", ["gru", "llama", "lstm"])
def test_baselines_made_of_pytorchs_own_layers_run_those(name, device) -> None:
    """A transformer has kernels of ours around PyTorch's attention; the others the dense engine."""
    cell, kernels = registry.cell(name), {"cpu", "cuda"} if name == "gru" else {"cuda"}
    assert choose_backend(cell, "auto", device) == (device if device in kernels else "torch")
    assert choose_backend(cell, "torch", device) == "torch"


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
            "backends: auto, reference, cpu, cuda, triton, flash_qla, torch",
        ),
    ],
    ids=["not-there", "wrong-device", "misspelled"],
)
def test_an_impossible_backend_is_refused_with_what_to_type(
    cell, requested, device, message
) -> None:
    with pytest.raises(UserError) as caught:
        choose_backend(cell, requested, device)
    assert str(caught.value) == message


@pytest.mark.parametrize("requested", ["auto", "cuda"])
def test_a_gpu_whose_kernels_cannot_run_is_no_reason_to_be_slow(requested, monkeypatch) -> None:
    monkeypatch.setattr(driver, "cuda_problem", lambda: "the driver is old; update it")
    with pytest.raises(UserError) as caught:
        choose_backend(E88, requested, "cuda")
    assert str(caught.value) == (
        "kernels.backend=cuda: the driver is old; update it, or use kernels.backend=reference"
    )
    assert choose_backend(E88, "reference", "cuda") == "reference"
    assert choose_backend(E88, "cuda", "meta") == "cuda"


def test_every_cell_has_cuda_where_it_has_cpu() -> None:
    """But for the transformer and PyTorch's LSTM, whose CPU has PyTorch's own kernels alone."""
    cells = [one for one in registry.cells().values() if one.name not in ("llama", "lstm")]
    compiled = {c.name for c in cells if "cuda" in c.backends}
    assert compiled == {c.name for c in cells if "cpu" in c.backends}
    engines = {c.engine for c in cells if "cuda" in c.backends}
    assert engines == {"matrix_state", "channel", "dense", "tape", "torch"}
    for cell in (c for c in cells if "cuda" in c.backends):
        order = ("torch" if cell.engine == "torch" else "reference", "cpu", "triton", "cuda")
        assert cell.backends == tuple(n for n in order if n != "triton" or n in cell.backends)


@pytest.fixture
def an_amd_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let torch be a build for ROCm, whose device is called cuda."""
    monkeypatch.setattr(backends, "torch_is_for_rocm", lambda: True)
    backends._say_other.cache_clear()
    backends._say_slow.cache_clear()


@pytest.mark.usefixtures("an_amd_gpu")
def test_an_amd_gpu_has_triton_and_not_cuda(capsys) -> None:
    assert choose_backend(E88, "auto", "cuda") == "triton"
    said = capsys.readouterr().err
    assert said == (
        "elman: kernels.backend=auto: triton, because this torch is built for AMD GPUs (ROCm) and "
        "the cuda kernels are for NVIDIA's\n"
    )
    assert choose_backend(registry.cell("e1"), "auto", "cuda") == "reference"
    with pytest.raises(UserError) as caught:
        choose_backend(E88, "cuda", "cuda")
    assert str(caught.value) == (
        "kernels.backend=cuda: this torch is built for AMD GPUs (ROCm) and the cuda kernels are "
        "for NVIDIA's; use kernels.backend=triton or kernels.backend=auto"
    )
    assert norm_backend("auto", "cuda") == "reference"
    with pytest.raises(UserError, match="built for AMD"):
        norm_backend("cuda", "cuda")


def test_a_missing_triton_is_one_line(monkeypatch) -> None:
    problem = "triton is not installed; pip install 'triton>=3.6.0'"
    monkeypatch.setattr(backends, "triton_problem", lambda: problem)
    with pytest.raises(UserError) as caught:
        choose_backend(E88, "triton", "cuda")
    assert str(caught.value) == (
        f"kernels.backend=triton: {problem}, or use kernels.backend=reference"
    )
    # What a package needs is the package's to say.
    assert choose_backend(MAMBA2, "triton", "cuda") == "triton"


@pytest.mark.compiler
def test_a_cpu_runs_triton_only_on_its_interpreter_and_only_by_name(monkeypatch) -> None:
    monkeypatch.setattr(backends, "interpreted", lambda: True)
    assert choose_backend(E88, "triton", "cpu") == "triton"
    assert choose_backend(E88, "auto", "cpu") == "cpu"
    for cell, on in ((MAMBA2, True), (E88, False)):
        monkeypatch.setattr(backends, "interpreted", lambda on=on: on)
        with pytest.raises(UserError, match=r"kernels\.backend=triton: does not run on a cpu "):
            choose_backend(cell, "triton", "cpu")


def test_a_transformer_without_our_kernels_is_told_to_use_pytorch(monkeypatch) -> None:
    monkeypatch.setattr("elman.kernels.driver.cuda_problem", lambda: "the driver is old")
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
