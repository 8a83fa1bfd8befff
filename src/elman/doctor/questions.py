"""Questions about this machine, each answered in its own process (``-m`` and a name).

A broken package may crash its process when it is imported, or hang. So the process of the diagnosis
itself imports none of them. The answer is one line of JSON after :data:`MARK`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

Answer = dict[str, Any]
MARK = "elman-answer:"
# The module of each package that computes its recurrence.
_KERNELS = {
    "mamba-ssm": "ops.triton.ssd_combined",
    "flash-linear-attention": "ops.gated_delta_rule",
    "flash-qla": "",
}


def torch_() -> Answer:
    """Return what torch is built for, the GPUs that it sees, and whether each can compute."""
    import warnings

    import torch

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    count = torch.cuda.device_count() if available else 0
    return {
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "available": available,
        "warning": _first_line(said[0].message) if said else None,
        "devices": [_device(index) for index in range(count)],
        "ranks": _ranks(),
        "cpu": _cpu(),
    }


def _cpu() -> Answer:
    """Return what a run would compute with on the CPU."""
    import torch

    from elman.devices.cpu import instructions, multiplies_bf16, waiting
    from elman.devices.environment import device_name

    return {
        "name": device_name(torch.device("cpu")),
        "instructions": instructions(),
        "bf16": multiplies_bf16(),
        "threads": torch.get_num_threads(),
        "waiting": waiting(),
    }


def _ranks() -> Answer:
    """Return what several processes can train one model through."""
    from torch import distributed
    from torch.cuda import nccl

    if not distributed.is_available():
        return {"nccl": None, "gloo": False}
    found = distributed.is_nccl_available()
    return {
        "nccl": ".".join(map(str, nccl.version())) if found else None,
        "gloo": distributed.is_gloo_available(),
    }


def _device(index: int) -> Answer:
    import torch

    found = torch.cuda.get_device_properties(index)
    answer = {"name": found.name, "capability": [found.major, found.minor], "problem": None}
    try:
        ones = torch.ones(8, 8, device=f"cuda:{index}")
        assert float((ones @ ones).sum()) == 512
    except Exception as error:  # if two matrices cannot be multiplied, no run can work
        answer["problem"] = f"{type(error).__name__}: {_first_line(error)}"
    return answer


def nvml() -> Answer:
    """Return the driver and its GPUs as NVIDIA's management library sees them."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        without_gpu = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        return {
            "driver": None,
            "reason": str(error),
            "broken": error.value not in without_gpu,
            "devices": [],
        }
    handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
    cuda = pynvml.nvmlSystemGetCudaDriverVersion()
    return {
        "driver": _text(pynvml.nvmlSystemGetDriverVersion()),
        "cuda": [cuda // 1000, cuda % 1000 // 10],
        "devices": [
            {
                "name": _text(pynvml.nvmlDeviceGetName(handle)),
                "memory": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                "free": int(pynvml.nvmlDeviceGetMemoryInfo(handle).free),
            }
            for handle in handles
        ],
    }


def nvrtc() -> Answer:
    """Return the version of NVIDIA's run-time compiler, or the command that installs it."""
    from elman.base.errors import UserError
    from elman.kernels.nvrtc import INSTALL, nvrtc_version

    try:
        return {"version": nvrtc_version(), "install": INSTALL}
    except UserError:
        return {"version": None, "install": INSTALL}


def compiler() -> Answer:
    """Return the C++ compiler that builds kernels, or why there is none."""
    from elman.kernels.compiler import compiler_problem, find_compiler

    found = find_compiler()
    if found is None:
        return {"command": None, "version": None, "problem": compiler_problem()}
    return {"command": found.path, "version": found.version, "problem": None}


def triton() -> Answer:
    """Import triton."""
    import_module("triton")
    return {}


def causal_conv1d() -> Answer:
    """Import causal-conv1d, whose extension fits only one version of torch."""
    import_module("causal_conv1d")
    return {}


def _package(name: str) -> Answer:
    """Return why a baseline's package cannot run on the first GPU; no problem if there is none."""
    import torch

    if not torch.cuda.is_available():
        return {"problem": None}  # plain PyTorch computes the baseline
    from elman.base.errors import UserError
    from elman.kernels.packages import import_kernels, package_problem

    problem = package_problem(name, torch.device("cuda", 0))
    if problem is None:
        try:
            import_kernels(name, _KERNELS[name])
        except UserError as error:
            problem = str(error)
    return {"problem": problem}


QUESTIONS: dict[str, Callable[[], Answer]] = {
    "torch": torch_,
    "nvml": nvml,
    "nvrtc": nvrtc,
    "compiler": compiler,
    "triton": triton,
    "causal-conv1d": causal_conv1d,
    **{name: partial(_package, name) for name in _KERNELS},
}


def _first_line(thing: object) -> str:
    return (str(thing).strip().splitlines() or [""])[0]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


if __name__ == "__main__":
    print(MARK + json.dumps(QUESTIONS[sys.argv[1]]()), flush=True)
