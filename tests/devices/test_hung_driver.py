"""A driver that never answers, by a library that sleeps: it holds nothing up for long."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from elman.devices import nvml_client
from elman.devices.locks import FOLDER
from elman.devices.nvml import PRETENDED, DriverError, DriverHangsError, Gpu, GpuProcess, Sample
from elman.devices.nvml_client import AskedDriver
from elman.launchers.gpus.slot import GpuSlot

LIBRARY = r"""
import os, pathlib, time
from types import SimpleNamespace as Of

PLACE = pathlib.Path(__file__).parent
nvmlMemory_v2 = 2

class NVMLError(Exception):
    pass

def _asked():
    with (PLACE / "asked").open("a") as stream:
        stream.write(f"{os.getpid()}\n")
    if (PLACE / "dies").exists():
        os._exit(7)
    if (PLACE / "lost").exists():
        raise NVMLError("GPU is lost")
    while (PLACE / "hangs").exists():
        time.sleep(600)

nvmlInit = nvmlShutdown = lambda: None
def nvmlDeviceGetCount():
    _asked()
    return 1
def nvmlDeviceGetHandleByUUID(uuid):
    _asked()
    return uuid
nvmlDeviceGetHandleByIndex = lambda index: "GPU-x"
nvmlDeviceGetUUID = lambda handle: handle
nvmlDeviceGetName = lambda handle: "a card"
nvmlDeviceGetMemoryInfo = lambda handle, version: Of(used=300 << 20)
nvmlDeviceGetUtilizationRates = lambda handle: Of(gpu=4)
nvmlDeviceGetComputeRunningProcesses = lambda handle: [Of(pid=1, usedGpuMemory=None)]
"""
# An impatient elman: it says so after a tenth of a second, and gives up after one.
IMPATIENT = """
import sys
from elman.cli.main import main
from elman.devices import nvml_client
nvml_client._SAID_AFTER, nvml_client.GPUS_SECONDS = 0.1, 1.0
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a library in place of the driver's; files in the folder say how it behaves."""
    folder = tmp_path / "library"
    folder.mkdir()
    (folder / "pynvml.py").write_text(LIBRARY)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv(FOLDER, str(tmp_path / "locks"))
    monkeypatch.delenv(PRETENDED, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(nvml_client, "GPUS_SECONDS", 120.0)
    monkeypatch.setattr(nvml_client, "SAMPLE_SECONDS", 120.0)
    return folder


@pytest.fixture
def driver(library: Path) -> Iterator[AskedDriver]:
    """Return a driver whose process does not outlive the test."""
    asked = AskedDriver()
    yield asked
    for process in (asked._process, asked._hung):
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.stdout.close()


def test_answers_come_through_one_process(driver: AskedDriver, library: Path) -> None:
    assert driver.gpus() == [Gpu(0, "GPU-x", "a card")]
    sample = Sample(300, 4, (GpuProcess(1, None),))
    assert [driver.sample("GPU-x"), driver.sample("GPU-x")] == [sample, sample]
    assert len(set((library / "asked").read_text().split())) == 1


@pytest.mark.parametrize(
    ("how", "message"),
    [("lost", "GPU is lost"), ("dies", "the process that asks it ended with status 7")],
)
def test_an_error_is_not_a_hang_and_may_pass(
    driver: AskedDriver, library: Path, how: str, message: str
) -> None:
    (library / how).touch()
    with pytest.raises(DriverError, match=message) as raised:
        driver.gpus()
    assert not isinstance(raised.value, DriverHangsError)
    (library / how).unlink()
    assert len(driver.gpus()) == 1


def test_a_hang_is_given_up_and_left_alone(
    driver: AskedDriver, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_client, "SAMPLE_SECONDS", 0.5)
    monkeypatch.setattr(nvml_client, "MUTE_SECONDS", 3600.0)
    assert len(driver.gpus()) == 1
    (library / "hangs").touch()
    slot = GpuSlot(Gpu(0, "GPU-x", "a card"), driver)
    assert not slot.ready()
    assert slot.waiting == "the driver does not answer: no answer within 0.5 s"
    asked = (library / "asked").read_text()
    with pytest.raises(DriverHangsError):  # nobody asks: the jobs that run need looking after
        driver.sample("GPU-x")
    assert driver._process is None
    assert (library / "asked").read_text() == asked
    slot.leave()


def test_a_hang_is_forgiven_when_it_is_over(
    driver: AskedDriver, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvml_client, "SAMPLE_SECONDS", 0.5)
    monkeypatch.setattr(nvml_client, "MUTE_SECONDS", 0.5)
    assert len(driver.gpus()) == 1
    (library / "hangs").touch()
    with pytest.raises(DriverHangsError):
        driver.sample("GPU-x")
    (library / "hangs").unlink()
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        with suppress(DriverHangsError):
            assert len(driver.gpus()) == 1
            return
        time.sleep(0.05)
    raise AssertionError("the driver answers again, and nobody asks it")


@pytest.mark.parametrize("launcher", ["launcher=gpus", "launcher.gpus=[0]"])
def test_a_sweep_is_refused_in_one_line(
    library: Path, tmp_path: Path, stub_environment: dict[str, str], launcher: str
) -> None:
    (library / "hangs").touch()
    done = _sweep(tmp_path, library, stub_environment, launcher)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "elman: waiting for the NVIDIA driver to say which GPUs there are (up to 1 s) ...",
        "elman: error: the NVIDIA driver hangs: asked for its GPUs, no answer within 1 s; see "
        "whether nvidia-smi answers and have the driver restarted, or type CUDA_VISIBLE_DEVICES= "
        "elman ... to run on the CPU",
    ]
    assert not (tmp_path / "outputs").exists()


def test_what_the_line_says_to_type_runs(
    library: Path, tmp_path: Path, stub_environment: dict[str, str]
) -> None:
    (library / "hangs").touch()
    environment = stub_environment | {"CUDA_VISIBLE_DEVICES": ""}
    done = _sweep(tmp_path, library, environment, "launcher=gpus")
    assert (done.returncode, done.stderr) == (0, "")
    assert "on the CPU (CUDA_VISIBLE_DEVICES= allows none)" in done.stdout
    assert not (library / "asked").exists()


def _sweep(
    folder: Path, library: Path, environment: dict[str, str], launcher: str
) -> subprocess.CompletedProcess[str]:
    """Run a sweep of one stub to its end, within seconds."""
    return subprocess.run(
        [sys.executable, "-c", IMPATIENT, "-m", "train.steps=3", launcher],
        cwd=folder,
        env=environment | {"PYTHONPATH": f"{library}:{environment['PYTHONPATH']}"},
        capture_output=True,
        text=True,
        timeout=180,
    )
