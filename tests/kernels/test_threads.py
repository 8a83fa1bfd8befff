"""How many threads a kernel may run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from elman.kernels.threads import cpu_share, kernel_threads, quotas_of

SHARE = """
import os
from elman.kernels.threads import cpu_share
os.sched_setaffinity(0, {0})
print(cpu_share())
"""


@pytest.mark.parametrize(
    ("line", "files", "quotas"),
    [
        ("0::/job/step", {"job/cpu.max": "250000 100000", "job/step/cpu.max": "max 100000"}, [3]),
        ("0::/job", {"job/cpu.max": "400000 100000", "cpu.max": "100000 100000"}, [4, 1]),
        ("0::/", {}, []),
        ("0::/", {"cpu.max": "nonsense"}, []),
        (
            "4:cpu,cpuacct:/box",
            {
                "cpu,cpuacct/box/cpu.cfs_quota_us": "50000",
                "cpu,cpuacct/box/cpu.cfs_period_us": "100000",
            },
            [1],
        ),
        (
            "4:cpu,cpuacct:/",
            {"cpu/cpu.cfs_quota_us": "800000", "cpu/cpu.cfs_period_us": "100000"},
            [8],
        ),
        ("1:cpu:/", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, []),
        ("3:cpuset:/", {"cpuset/cpu.max": "100000 100000"}, []),
    ],
    ids=["v2", "v2-nested", "v2-none", "v2-odd", "v1", "v1-at-cpu", "v1-unlimited", "other"],
)
def test_quotas_of_a_container(
    tmp_path: Path, line: str, files: dict[str, str], quotas: list[int]
) -> None:
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content)
    assert quotas_of(line, tmp_path) == quotas


def share(**environment: str) -> int:
    """Return the share that a fresh process on one CPU sees."""
    done = subprocess.run(
        [sys.executable, "-c", SHARE],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


def test_affinity_binds() -> None:
    assert share(OMP_NUM_THREADS="64") == 1


@pytest.mark.parametrize(
    ("variables", "most"),
    [
        ({"OMP_NUM_THREADS": "1"}, 1),
        ({"OMP_NUM_THREADS": "1,4"}, 1),
        ({"OMP_THREAD_LIMIT": "1"}, 1),
        ({"OMP_NUM_THREADS": "many"}, 64),
    ],
    ids=["one", "nested", "limit", "not-a-number"],
)
def test_the_variables_of_openmp_bind(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], most: int
) -> None:
    for name in ("OMP_NUM_THREADS", "OMP_THREAD_LIMIT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr("elman.kernels.threads._quotas", list)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    cpu_share.cache_clear()
    try:
        assert cpu_share() == most
        assert kernel_threads(8) == min(8, most)
        assert kernel_threads(0) == 1
    finally:
        cpu_share.cache_clear()
