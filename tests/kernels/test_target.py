"""Which instruction sets a kernel is compiled for."""

from __future__ import annotations

import subprocess

import pytest

from elman.kernels.compiler import find_compiler
from elman.kernels.target import host_target, target_for

V2 = "cx16 lahf_lm popcnt pni sse4_1 sse4_2 ssse3"
V3 = f"{V2} avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.parametrize(
    ("features", "name"),
    [
        ("sse sse2", "x86-64"),
        (V2, "x86-64-v2"),
        (f"{V3} avx512f", "x86-64-v3"),
        (V4, "x86-64-v4"),
        # AVX-512 without AVX2's companions does not exist, but virtual machines hide features.
        (V4.replace("bmi2 ", ""), "x86-64-v2"),
        ("", "x86-64"),
    ],
    ids=["none", "v2", "v3", "v4", "v4-without-bmi2", "unknown"],
)
def test_the_level_is_the_highest_that_the_cpu_has_whole(features: str, name: str) -> None:
    target = target_for("x86_64", frozenset(features.split()))
    assert target.name == name
    assert all(f"-march={name}" in flags or not flags for flags in target.flags)
    assert () in target.flags


@pytest.mark.parametrize("machine", ["aarch64", "arm64"])
def test_an_arm_cpu_is_native_and_its_features_are_its_name(machine: str) -> None:
    one = target_for(machine, frozenset({"asimd", "sve"}))
    assert one.flags[0] == ("-mcpu=native",)
    assert one.name != target_for(machine, frozenset({"asimd"})).name


def test_another_machine_gets_no_flags() -> None:
    assert target_for("riscv64", frozenset()).flags == ((),)


@pytest.mark.compiler
def test_the_compiler_here_knows_the_level_of_this_cpu() -> None:
    compiler = find_compiler()
    assert compiler is not None
    assert compiler.target_flags == host_target().flags[0]
    command = [*compiler.command, *compiler.target_flags, "-x", "c++", "-fsyntax-only", "-"]
    subprocess.run(command, input="int x;", text=True, check=True)
