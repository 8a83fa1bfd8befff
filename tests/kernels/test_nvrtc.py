"""CUDA kernels compile without a GPU, for every architecture, and take what the page says."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from elman.base.errors import UserError
from elman.kernels import driver, nvrtc, sources
from elman.kernels.nvrtc import Unit, nvrtc_version
from elman.ops.decode import draw, row_product
from elman.ops.matrix_state.cuda import kernels
from elman.ops.matrix_state.stacked import DELTA, stacked_plan

TOOLS = Path(__file__).parents[2] / "tools" / "docs"
EMPTY = 'extern "C" __global__ void nothing() {}'


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_registers", TOOLS / "make_registers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_registers"] = module
    spec.loader.exec_module(module)
    return module


registers = _load()
CELLS = list(registers.cells())
MODELS = list(registers.models())
STEPS = list(registers.channels())
SEQUENCES = [*registers.sequences("dense"), *registers.sequences("tape")]


def rows() -> list[list[str]]:
    """Return the rows of all tables of the committed page."""
    lines = [line for line in registers.PAGE.read_text().splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if "registers" not in row and set(row) != {"---"}]


@pytest.fixture(scope="session")
def row_of() -> Iterator[Callable[[str], list[str]]]:
    """Return a function that has the pinned compiler make the row of a label.

    It works in a process of its own: this one has the NVRTC that users have.
    """
    if problem := registers.compiler_problem():
        pytest.skip(problem)
    process = subprocess.Popen(
        [sys.executable, str(TOOLS / "make_registers.py"), "--rows"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask(label: str) -> list[str]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{label}\n")
        process.stdin.flush()
        return list(json.loads(process.stdout.readline()))

    yield ask
    process.communicate()


def check_committed(row: list[str]) -> None:
    assert row in rows(), "docs/registers.md is old: run python tools/docs/make_registers.py"


# One row of every model, size, dtype and architecture: what is left is made of the same parts.
OFTEN = (
    *(f"E88-n{n}-bf16-sm_90" for n in registers.SIZES),
    *("E70-n16-bf16-sm_90", "E75-n128-bf16-sm_90", "E75-n64-fp32-sm_90"),
    *("E75-n32-bf16-sm_80", "E88-n64-bf16-sm_100", "E70-n20-bf16-sm_120"),
)
# Of cells and steps that differ in an activation alone, one is compiled.
ALIKE = re.compile(
    r"(row|full)_gated_(sigmoid|none)-.*|scaled_read_delta_(sigmoid|none)-.*|value_gated_inverse-.*"
    r"|channel-e74_(simple|ema|retain|state)_(linear|rmsnorm|frobnorm)"
)


def seldom(kernel: Any) -> bool:
    """Return whether a row is left to the slow tests."""
    rare = kernel in MODELS and kernel.label not in OFTEN
    return rare or ALIKE.fullmatch(kernel.label) is not None


def by_cost(kernels: list[Any]) -> list[Any]:
    """Return parameters, some of which are slow."""
    return [pytest.param(one, marks=[pytest.mark.slow] * seldom(one)) for one in kernels]


@pytest.mark.required
@pytest.mark.parametrize("kernel", by_cost([*CELLS, *MODELS]), ids=lambda kernel: kernel.label)
def test_matrix_kernels_take_what_the_page_says_and_do_not_spill(kernel, row_of) -> None:
    row = row_of(kernel.label)
    if kernel.plan.columns <= 64:
        assert row[8] == "0 / 0", f"{kernel.label} spills {row[8]} bytes"
    check_committed(row)


@pytest.mark.required
@pytest.mark.parametrize("kernel", by_cost(STEPS), ids=lambda kernel: kernel.label)
def test_channel_kernels_take_what_the_page_says_and_do_not_spill(kernel, row_of) -> None:
    row = row_of(kernel.label)
    assert row[2] == "0 / 0", f"{kernel.label} spills {row[2]} bytes"
    check_committed(row)


@pytest.mark.required
@pytest.mark.parametrize("kernel", SEQUENCES, ids=lambda kernel: kernel.label)
def test_dense_and_tape_kernels_take_what_the_page_says(kernel, row_of) -> None:
    check_committed(row_of(kernel.label))


# One model on every architecture, and the others on one.
INSTALLED = [
    kernel
    for kernel in MODELS
    if kernel.plan.columns == 32 and kernel.dtype == torch.bfloat16
    if kernel.name == "E75" or kernel.architecture == "sm_90"
]


@pytest.mark.parametrize("kernel", INSTALLED, ids=lambda kernel: kernel.label)
def test_the_users_compiler_does_not_spill_either(kernel) -> None:
    assert kernel.row()[8] == "0 / 0"


@pytest.mark.required
def test_the_page_names_the_pinned_compiler() -> None:
    pinned = re.search(r"nvrtc==(\d+\.\d+)\.", registers.PINNED.read_text())
    assert pinned
    assert f"NVRTC {pinned[1]};" in registers.PAGE.read_text()


def test_without_the_pinned_compiler_one_line_says_what_to_type(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(registers, "COMPILER", tmp_path)
    with pytest.raises(SystemExit, match=r"make_registers: the compiler of .* pip install --no-d"):
        registers.take_pinned_compiler()


def test_an_array_in_local_memory_counts_as_spilled(cache: Path) -> None:
    text = """
    struct Where { float* x; int i; };
    extern "C" __global__ void indexed(const __grid_constant__ Where a) {
      float y[64], sum = 0;
      for (int i = 0; i < 64; i++) y[i] = sum += a.x[i] * sum;
      for (int i = 0; i < 64; i++) a.x[i] = y[(a.i * i) % 64];
    }
    """
    used = Unit(text, "indexed test", "sm_90", False).resources()
    assert used["indexed"].spilled >= 64 * 4


def test_the_page_has_every_row() -> None:
    assert len(rows()) == len(CELLS) + len(MODELS) + len(STEPS) + len(SEQUENCES)
    matrix = [row for row in rows() if len(row) == len(registers.HEAD)]
    assert {row[3] for row in matrix} == set(registers.ARCHITECTURES)
    assert [[*row[:7], row[9]] for row in matrix] == [one.sizes() for one in (*MODELS, *CELLS)]
    assert {row[8] for row in matrix if int(row[1]) <= 64} == {"0 / 0"}
    assert {row[2] for row in rows() if len(row) == 3} == {"0 / 0"}
    assert sum(map(seldom, MODELS)) == len(MODELS) - len(OFTEN)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path))
    return tmp_path


def test_a_kernel_is_compiled_once_with_one_line(cache: Path, capsys) -> None:
    first = Unit(EMPTY, "empty test", "sm_90", False).cubin()
    said = capsys.readouterr().err
    assert re.fullmatch(
        r"elman: compiling the empty test kernel for sm_90, once \(.*\) \.\.\.\n", said
    )
    assert Unit(EMPTY, "empty test", "sm_90", False).cubin() == first
    assert capsys.readouterr().err == ""
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("name", ["kernel.cubin", "build.json"])
def test_a_damaged_cache_is_made_again(name, cache: Path, capsys) -> None:
    unit = Unit(EMPTY, "empty test", "sm_90", False)
    whole = unit.cubin()
    damaged = unit.folder / name
    damaged.write_bytes(damaged.read_bytes()[:-9])
    assert Unit(EMPTY, "empty test", "sm_90", False).cubin() == whole
    record = json.loads((unit.folder / "build.json").read_text())
    assert record["nvrtc"] == nvrtc_version()


def test_every_condition_has_a_kernel_of_its_own(cache: Path, monkeypatch) -> None:
    units = [
        Unit(text, "empty test", architecture, fast)
        for text in (EMPTY, EMPTY + " ")
        for architecture in ("sm_80", "sm_90")
        for fast in (True, False)
    ]
    folders = {unit.folder for unit in units}
    assert len(folders) == len(units)
    monkeypatch.setattr(nvrtc, "nvrtc_version", lambda: "99.0")
    assert Unit(EMPTY, "empty test", "sm_90", True).folder not in folders


def test_a_change_to_an_included_source_makes_another_kernel(cache: Path, monkeypatch) -> None:
    text = '#include "cuda/channel/passes.cuh"\n' + EMPTY
    before = Unit(text, "empty test", "sm_90", True).folder
    read = sources._read
    monkeypatch.setattr(sources, "_read", lambda path: read(path) + b" " * (path.name == "math.h"))
    assert Unit(text, "empty test", "sm_90", True).folder != before


def test_units_compile_side_by_side_and_one_unit_once(cache: Path, monkeypatch) -> None:
    """Two units are inside the compiler at the same time, each entered by one thread alone."""
    meet, entered = threading.Barrier(2, timeout=120), []

    def slow(unit: Unit) -> SimpleNamespace:
        entered.append(unit.label)
        meet.wait()
        return SimpleNamespace(unit=unit)

    monkeypatch.setattr(driver, "Loaded", slow)
    monkeypatch.setattr(driver, "_loaded", {})
    units = [Unit(EMPTY, f"side {n}", "sm_90", True) for n in range(2)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(driver.load, units * 3))
    assert sorted(entered) == ["side 0", "side 1"]
    assert len({id(one) for one in found}) == 2


def test_an_architecture_that_nvrtc_does_not_know(cache: Path) -> None:
    with pytest.raises(UserError, match=r"NVRTC .* does not know sm_999; install a newer one with"):
        Unit(EMPTY, "empty test", "sm_999", False).cubin()


def test_a_text_that_does_not_compile(cache: Path) -> None:
    with pytest.raises(
        UserError, match=r"compiling the wrong test kernel failed: .*error"
    ) as raised:
        Unit("int f() { return x; }", "wrong test", "sm_90", False).cubin()
    log = re.search(r"all of it in (\S+)\)", str(raised.value))
    assert log
    assert "return x" in Path(log[1]).read_text()


def test_without_nvrtc_one_line_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    nvrtc._nvrtc.cache_clear()
    try:
        with pytest.raises(UserError, match="NVRTC is missing; pip install") as raised:
            nvrtc._nvrtc()
    finally:
        nvrtc._nvrtc.cache_clear()
    assert "\n" not in str(raised.value)


class FakeDriver(ModuleType):
    """A driver of some CUDA version with one GPU."""

    class CUdevice_attribute:  # noqa: N801 - NVIDIA's name
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 0
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 1

    def __init__(self, started: int, version: int, capability: tuple[int, int]) -> None:
        super().__init__("driver")
        self.started, self.version, self.capability = started, version, capability

    def cuInit(self, flags: int) -> tuple[Any]:  # noqa: N802
        return (SimpleNamespace(name="CUDA_ERROR_NO_DEVICE") if self.started else 0,)

    def cuDriverGetVersion(self) -> tuple[int, int]:  # noqa: N802
        return 0, self.version

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[int, int]:  # noqa: N802
        return 0, self.capability[attribute]


@pytest.fixture
def asked_anew() -> Iterator[None]:
    """Let the driver be looked at again, before and after."""
    for known in (driver._driver, driver.cuda_problem):
        known.cache_clear()
    yield
    for known in (driver._driver, driver.cuda_problem):
        known.cache_clear()


@pytest.mark.parametrize(
    ("fake", "problem"),
    [
        (FakeDriver(0, 13050, (9, 0)), None),
        (FakeDriver(0, 99000, (8, 0)), None),
        (
            FakeDriver(0, 12040, (9, 0)),
            f"the driver supports CUDA 12.4 and NVRTC is {nvrtc_version()}; update the driver, "
            "or pip install 'cuda-bindings==12.*' nvidia-cuda-nvrtc-cu12",
        ),
        (
            FakeDriver(0, 13050, (7, 5)),
            "kernels need a GPU of sm_80 or later and this is sm_75; use another GPU",
        ),
        (
            FakeDriver(1, 13050, (9, 0)),
            "NVIDIA's driver does not start (CUDA_ERROR_NO_DEVICE); nvidia-smi says more",
        ),
        (None, f"cuda-bindings is missing; {nvrtc.INSTALL}"),
    ],
    ids=["well", "newer", "old-driver", "old-gpu", "no-device", "no-bindings"],
)
def test_what_stands_in_the_way_is_one_line(asked_anew, monkeypatch, fake, problem) -> None:
    bindings = importlib.import_module("cuda.bindings")
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", fake)
    if fake is None:
        monkeypatch.delattr(bindings, "driver", raising=False)
    else:
        monkeypatch.setattr(bindings, "driver", fake, raising=False)
    assert driver.cuda_problem() == problem


def test_without_a_driver_library_one_line_says_so(asked_anew, monkeypatch) -> None:
    fake = FakeDriver(0, 13050, (9, 0))
    monkeypatch.setattr(fake, "cuInit", _no_library, raising=False)
    monkeypatch.setattr(importlib.import_module("cuda.bindings"), "driver", fake, raising=False)
    with pytest.raises(UserError, match=r"^kernels\.backend=cuda: NVIDIA's driver is missing; "):
        driver._driver()


class Nothing(ctypes.Structure):
    """What a kernel without arguments is given."""

    _fields_ = ()


class LaunchingDriver(ModuleType):
    """A driver that notes what kernels ask for and ends launches as it is told."""

    CUfunction = int
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared")

    def __init__(self, granted: bool, launched: bool) -> None:
        super().__init__("driver")
        refused = SimpleNamespace(name="CUDA_ERROR_INVALID_VALUE")
        self.asked: list[tuple[str, int]] = []
        self.granted, self.launched = (0 if well else refused for well in (granted, launched))

    def __getattr__(self, name: str) -> Any:
        known = {
            "cuLibraryLoadData": (0, 1),
            "cuLibraryGetKernel": (0, 2),
            "cuCtxGetCurrent": (0, 1),
            "cuLaunchKernel": (self.launched,),
        }
        return lambda *given: known[name]

    def cuKernelSetAttribute(self, what: str, size: int, *where: Any) -> tuple[Any]:
        self.asked.append((what, size))
        return (self.granted,)


@pytest.mark.parametrize(
    ("granted", "launched", "problem"),
    [
        (True, True, None),
        (False, True, "needs 100000 bytes of shared memory"),
        (True, False, "cannot be launched"),
    ],
)
def test_a_kernel_asks_for_its_shared_memory_and_a_refused_launch_is_an_error(
    cache: Path, monkeypatch, granted: bool, launched: bool, problem: str | None
) -> None:
    fake = LaunchingDriver(granted, launched)
    monkeypatch.setattr(driver, "_driver", lambda: fake)
    monkeypatch.setattr(driver, "_entered", threading.local())
    kernel = driver.Loaded(Unit(EMPTY, "empty test", "sm_90", False))
    size = {"blocks": 1, "threads": 32, "shared_bytes": 100_000, "device": 0, "stream": 0}
    with pytest.raises(UserError, match=problem) if problem else nullcontext():
        kernel.launch("nothing", arguments=Nothing(), **size)
    assert fake.asked == [("shared", 100_000)]


def test_kernels_that_are_only_asked_for_are_launched_later(cache: Path, monkeypatch) -> None:
    fake, asked = LaunchingDriver(True, True), []
    monkeypatch.setattr(driver, "_driver", lambda: fake)
    monkeypatch.setattr(driver, "_loaded", {})
    monkeypatch.setattr(driver, "_entered", threading.local())
    unit = Unit(EMPTY, "empty test", "sm_90", False)
    size = {"blocks": 1, "threads": 32, "shared_bytes": 100_000, "device": 0, "stream": 0}
    with driver.only_asking(asked.append):
        kernel = driver.load(unit)
        kernel.launch("nothing", arguments=Nothing(), **size)
        assert asked == [unit]
        assert not list(cache.rglob("*.cubin"))
    assert fake.asked == []
    kernel.launch("nothing", arguments=Nothing(), **size)
    assert fake.asked == [("shared", 100_000)]
    with driver.only_asking(asked.append):
        assert driver.load(unit) is driver.load(unit)
    assert asked == [unit]


def _no_library(flags: int) -> tuple[int]:
    raise RuntimeError("Failed to dlopen libcuda.so.1")


def test_a_dtype_without_kernels_is_refused() -> None:
    plan = stacked_plan("delta", 1, 16, 16, **DELTA)
    with pytest.raises(UserError, match="bfloat16 and float32, not on torch"):
        kernels.types(plan, torch.float16)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_decoding_kernels_compile_without_spills(architecture: str) -> None:
    texts = {
        "row_product": row_product.unit_text(torch.bfloat16, 1536, 8, 1),
        "draw": draw.unit_text(torch.bfloat16, 256),
    }
    for kernel, text in texts.items():
        found = Unit(text, "decoding", architecture, fast=False).resources()[kernel]
        assert found.spilled == 0
        assert found.registers <= 96


def test_an_interrupted_compilation_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(unit: Unit) -> tuple[bytes, str]:
        raise KeyboardInterrupt

    monkeypatch.setenv("ELMAN_CACHE", str(tmp_path))
    monkeypatch.setattr(nvrtc, "_compile", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Unit(EMPTY, "nothing", "sm_90", fast=False).cubin()
    assert list(tmp_path.iterdir()) == []
