"""Known bad combinations, each with the command that fixes it."""

from __future__ import annotations

from collections.abc import Callable

from packaging.version import Version

from elman.doctor.facts import Facts
from elman.doctor.findings import Finding, Mark
from elman.kernels import flash_qla
from elman.kernels.triton_version import wrong_gated_delta

_AREA = "known bad"
_FLA = "flash-linear-attention"
_NEWER_TORCH = "pip install --upgrade 'torch>=2.12.1'"
_CUDA_TORCH = "pip install --force-reinstall --index-url https://pypi.org/simple torch"
_OLDER_CUDA = (
    "pip install --force-reinstall --index-url https://download.pytorch.org/whl/cu126 torch"
)


def combinations(facts: Facts) -> list[Finding]:
    """Return the known bad combinations found here, or one line that says there is none."""
    found = [finding for known in KNOWN if (finding := known(facts)) is not None]
    if found:
        return found
    return [Finding(_AREA, "combinations", Mark.OK, f"none of the {len(KNOWN)} known ones is here")]


def gated_delta_on_hopper(facts: Facts) -> Finding | None:
    """Wrong gradients; later versions of the package refuse it (issues 640, 983 and 984)."""
    triton = facts.installed("triton")
    hopper = any(major == 9 for major, _ in facts.capabilities)
    if not hopper or triton is None or not wrong_gated_delta(triton):
        return None
    there = facts.installed(_FLA) is not None
    return Finding(
        _AREA,
        "fla-gdn on Hopper",
        Mark.BROKEN if there else Mark.NOTE,
        f"triton {triton} computes wrong gradients of {_FLA}'s gated delta rule on this GPU; "
        "torch 2.12.1 brings triton 3.7.1, which does not",
        _NEWER_TORCH,
    )


def gated_delta_on_blackwell(facts: Facts) -> Finding | None:
    """NaN gradients and out-of-bounds reads (issue 913 of the package)."""
    version = facts.installed(_FLA)
    blackwell = any(major >= 10 for major, _ in facts.capabilities)
    if not blackwell or version is None or version >= Version("0.6.0"):
        return None
    return Finding(
        _AREA,
        "fla-gdn on Blackwell",
        Mark.BROKEN,
        f"{_FLA} {version} reads out of bounds on this GPU and gives NaN gradients",
        f"pip install --upgrade '{_FLA}>=0.6.0'",
    )


def mamba_beside_cpu_torch(facts: Facts) -> Finding | None:
    """The package's root imports a CUDA extension that works with no CPU build of torch."""
    there = [name for name in ("mamba-ssm", "causal-conv1d") if facts.versions[name]]
    if not there or not facts.value("torch") or facts.value("torch")["cuda"] is not None:
        return None
    return Finding(
        _AREA,
        f"{' and '.join(there)} beside a CPU torch",
        Mark.BROKEN,
        "they work only with a CUDA build of torch; on a CPU mamba2 needs neither",
        f"pip uninstall --yes {' '.join(there)}",
    )


def two_tilelangs(facts: Facts) -> Finding | None:
    """mamba-ssm pins 0.1.8; flash-qla pins 0.1.9; flash-linear-attention uses any version."""
    version = facts.installed("tilelang")
    if version is not None and facts.versions[flash_qla.PACKAGE] is not None:
        return _tilelang_of_flash_qla(version, beside_mamba=facts.versions["mamba-ssm"] is not None)
    old = version is not None and version < Version("0.1.9")
    other = _FLA if old else "mamba-ssm"
    if version is None or facts.versions[other] is None:
        return None
    reason = (
        f"{_FLA} uses it by default on Hopper and wants 0.1.9"
        if old
        else "mamba-ssm is pinned to 0.1.8"
    )
    return Finding(
        _AREA,
        f"tilelang {version} beside {other}",
        Mark.NOTE,
        f"{reason}; neither mamba2 nor fla-gdn needs it",
        "pip uninstall --yes tilelang",
    )


def _tilelang_of_flash_qla(version: Version, *, beside_mamba: bool) -> Finding | None:
    """Only kernels.backend=flash_qla needs tilelang; then it is there for that."""
    if version.public != flash_qla.TILELANG:
        return Finding(
            _AREA,
            f"tilelang {version} beside {flash_qla.PACKAGE}",
            Mark.BROKEN,
            f"{flash_qla.PACKAGE} (kernels.backend={flash_qla.NAME}) is pinned to "
            f"{flash_qla.TILELANG}",
            f"pip install tilelang=={flash_qla.TILELANG}",
        )
    if not beside_mamba:
        return None
    return Finding(
        _AREA,
        f"tilelang {version} beside mamba-ssm",
        Mark.NOTE,
        "mamba-ssm is pinned to 0.1.8, but mamba2 does not need it; "
        f"{flash_qla.PACKAGE} (kernels.backend={flash_qla.NAME}) needs {flash_qla.TILELANG}",
    )


def cpu_torch_beside_gpu(facts: Facts) -> Finding | None:
    """A build of torch that cannot use this machine's GPU."""
    torch = facts.value("torch")
    if not facts.has_driver_gpus or not torch or torch["cuda"] is not None:
        return None
    found = "the driver shows a GPU that this build of torch cannot use"
    return Finding(_AREA, "CPU build of torch beside a GPU", Mark.NOTE, found, _CUDA_TORCH)


def gpu_out_of_torchs_sight(facts: Facts) -> Finding | None:
    """The driver shows a GPU, but torch, although built for CUDA, does not."""
    torch = facts.value("torch")
    if not facts.has_driver_gpus or not torch or torch["cuda"] is None or torch["available"]:
        return None
    name = "GPU that torch does not see"
    if facts.visible is not None:
        found = f"CUDA_VISIBLE_DEVICES='{facts.visible}' hides it"
        return Finding(_AREA, name, Mark.NOTE, found, "unset CUDA_VISIBLE_DEVICES")
    driver = tuple(facts.value("nvml")["cuda"])
    if driver[0] < int(torch["cuda"].split(".")[0]):
        found = (
            f"torch is built for CUDA {torch['cuda']}, the driver supports {driver[0]}.{driver[1]}"
        )
        return Finding(_AREA, name, Mark.BROKEN, found, _OLDER_CUDA)
    found = torch["warning"] or "torch does not say why"
    return Finding(_AREA, name, Mark.BROKEN, found, "nvidia-smi")


def no_triton_on_gpu(facts: Facts) -> Finding | None:
    """A CUDA build of torch without the compiler that comes with it."""
    if not facts.gpus or facts.versions["triton"] is not None:
        return None
    found = (
        "torch.compile, kernels.backend=triton and the packaged baselines need it; torch's builds "
        "for GPUs bring it"
    )
    return Finding(_AREA, "GPU without triton", Mark.NOTE, found, _CUDA_TORCH)


def driver_older_than_nvrtc(facts: Facts) -> Finding | None:
    """NVRTC's kernels need a driver of the same major version of CUDA or a later one."""
    compiler = facts.value("nvrtc").get("version")
    cuda = facts.value("nvml").get("cuda")
    if not facts.gpus or compiler is None or cuda is None:
        return None
    if cuda[0] >= int(compiler.split(".")[0]):
        return None
    return Finding(
        _AREA,
        "NVRTC newer than the driver",
        Mark.BROKEN,
        f"NVRTC {compiler} compiles kernels that a driver for CUDA {cuda[0]}.{cuda[1]} cannot load",
        f"pip install 'cuda-bindings=={cuda[0]}.*' nvidia-cuda-nvrtc-cu{cuda[0]}",
    )


KNOWN: tuple[Callable[[Facts], Finding | None], ...] = (
    gated_delta_on_hopper,
    gated_delta_on_blackwell,
    mamba_beside_cpu_torch,
    two_tilelangs,
    cpu_torch_beside_gpu,
    gpu_out_of_torchs_sight,
    no_triton_on_gpu,
    driver_older_than_nvrtc,
)
