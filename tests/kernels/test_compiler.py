"""Finding a C++ compiler, and saying what is wrong with the one that is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from elman.kernels import compiler
from elman.kernels.compiler import compiler_problem, find_compiler
from elman.kernels.target import host_target

pytestmark = pytest.mark.compiler


def test_the_one_of_this_machine_is_found(cache: Path) -> None:
    found = find_compiler()
    assert found is not None
    assert compiler_problem() is None
    assert Path(found.command[0]).is_absolute()
    assert found.version
    assert found.kind in ("g++", "clang")


def test_cxx_is_honored_and_proved_once_for_all_processes(fake_compiler) -> None:
    fake = fake_compiler()
    found = find_compiler()
    assert found is not None
    assert found.path == str(fake.path)
    calls = fake.calls()
    assert calls > 0
    compiler._search.cache_clear()  # as in another process
    assert find_compiler() == found
    assert fake.calls() == calls


def test_a_changed_compiler_is_proved_again(fake_compiler) -> None:
    fake_compiler()
    assert find_compiler() is not None
    fake_compiler("echo 'fatal error: broken' >&2; exit 1")
    compiler._search.cache_clear()
    assert find_compiler() is None


def test_cxx_may_be_several_words(fake_compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = fake_compiler()
    monkeypatch.setenv("CXX", f"{fake.path} -DEXTRA=1")
    found = find_compiler()
    assert found is not None
    assert found.command == (str(fake.path), "-DEXTRA=1")
    assert fake.calls("-DEXTRA=1") == fake.calls()


def test_a_compiler_that_knows_no_such_cpu_does_without(fake_compiler) -> None:
    fake_compiler('case "$*" in *-march=*|*-mcpu=*) echo "error: bad value" >&2; exit 1;; esac')
    found = find_compiler()
    assert found is not None
    assert found.target_flags == ()
    assert host_target().flags[-1] == ()


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ('case "$*" in *-fopenmp*) echo "error: unsupported option -fopenmp" >&2; exit 1;; esac',
         "error: unsupported option -fopenmp"),
        ("exit 3", "it fails without a message"),
        ("echo 'one line'  >&2; echo 'cannot find -lgomp' >&2; exit 1", "cannot find -lgomp"),
    ],
    ids=["no-openmp", "silent", "no-runtime"],
)  # fmt: skip
def test_a_compiler_that_fails_is_named_with_its_complaint(
    fake_compiler, script: str, complaint: str
) -> None:
    fake = fake_compiler(script)
    assert find_compiler() is None
    assert compiler_problem() == (
        f"CXX={fake.path}: {complaint}; unset CXX or name a C++ compiler with OpenMP, as in CXX=g++"
    )


@pytest.mark.parametrize(
    ("named", "problem"),
    [("/no/where/g++", "no such program"), ("'g++", "cannot be read")],
    ids=["missing", "unreadable"],
)
def test_a_cxx_that_is_no_command(
    cache: Path, monkeypatch: pytest.MonkeyPatch, named: str, problem: str
) -> None:
    monkeypatch.setenv("CXX", named)
    assert find_compiler() is None
    found = compiler_problem()
    assert found is not None
    assert found.startswith(f"CXX={named}: {problem}; ")


def test_without_any_compiler_the_problem_says_how_to_install_one(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_compiler() is None
    problem = "no C++ compiler (g++ or clang++) in PATH; "
    assert compiler_problem() == problem + "conda install -c conda-forge gxx"
    (tmp_path / "dnf").write_text("#!/bin/sh\n")
    (tmp_path / "dnf").chmod(0o755)
    compiler._search.cache_clear()
    assert compiler_problem() == problem + "sudo dnf install gcc-c++"


def test_the_first_that_works_is_taken(
    fake_compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    real = shutil.which("g++")
    for name, script in (("g++", "exit 1"), ("clang++", f'exec {real} "$@"')):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    found = find_compiler()
    assert found is not None
    assert found.command == (str(tmp_path / "clang++"),)


def test_a_cache_that_cannot_be_written_does_not_matter_here(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.parent.mkdir(exist_ok=True)
    cache.write_text("a file")
    assert find_compiler() is not None
