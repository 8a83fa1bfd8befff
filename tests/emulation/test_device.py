"""cuda/common/device.cuh itself, its inline assembly too, run on a CPU as PTX's manual says.

The other tests here have emulation/device.h in its place. Every probe runs with the header
as it is and with each planted fault, all of them in one translation unit.
"""

from __future__ import annotations

import ctypes
import functools
import math
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

from elman.kernels.launching import Launch
from elman.kernels.sources import source_folder
from elman.ops.matrix_state.abi import Call
from elman.ops.matrix_state.cuda import kernels as cuda
from elman.ops.matrix_state.cuda.heuristics import H200, choose, forward_of
from elman.ops.matrix_state.custom_op import KERNELS, Kernels
from tests.emulation import device_text, emulator
from tests.emulation.stretches import declare, of_matrix, rows
from tests.emulation.test_matrix_emulation import TOLERANCE, leaves_of, results
from tests.ops.matrix_state.test_matrix_kernels import LAYERS, assert_equal, build

SEEDS = range(1, 7)
TURNS, NUMBERS = 9, 64
# What is wrong, old text, new text.
FAULTS = {
    "a parity of every turn": ('"r"(turn / 2 % 2)', '"r"(turn % 2)'),
    "the other parity": ('"r"(turn / 2 % 2)', '"r"((turn / 2 + 1) % 2)'),
    "a parity that is a count": ('"r"(turn / 2 % 2)', '"r"(turn / 2)'),
    "one barrier for all turns": ("barriers + turn % 2 * STRIDE", "barriers"),
    "a wait that gives up": ("@!over bra again;", ""),
    "a wait while it is over": ("@!over", "@over"),
    "an arrival too few": ('"n"(ARRIVALS)', '"n"(ARRIVALS - 1)'),
    "a barrier that is not made": ("@first mbarrier.init.shared.b64 [%1], %2;", ""),
    "signals without a meeting": ("signals_ready() { __syncthreads(); }", "signals_ready() {}"),
    "arrivals for the next turn": (
        'state, [%0];}" ::"r"(barrier(turn))',
        'state, [%0];}" ::"r"(barrier(turn + 1))',
    ),
    "a wait for a group less": ('"n"(PENDING)', '"n"(PENDING + 1)'),
    "copies that are in no group": ('asm volatile("cp.async.commit_group;" ::: "memory");', ""),
    "copies of all 16 bytes": ("[%1], 16, %2;", "[%1], 16;"),
    "copies of all 4 bytes": ("[%1], %3, %2;", "[%1], %3;"),
    "the other half": ("cvt.f32.f16 %0, l;", "cvt.f32.f16 %0, h;"),
    "halves the wrong way round": (': "f"(high), "f"(low)', ': "f"(low), "f"(high)'),
    "halves that stay": ("0x1032", "0x3210"),
    "a root for a reciprocal": ("rcp.approx", "sqrt.approx"),
    "a warp barrier left out": ("sync_warp() { __syncwarp(); }", "sync_warp() {}"),
    "a block barrier left out": (
        "  __syncthreads();\n}\nDEVICE void sync_warp",
        "}\nDEVICE void sync_warp",
    ),
}
SHARE_FAULTS = {
    "producer warps' share for all": (
        "warp % SHARED_WARPS / ELMAN_SHARE_WARPS",
        "warp / SHARED_WARPS",
    ),
    "producer warps among the others": (
        "warp / SHARED_WARPS * ELMAN_SHARE_WARPS",
        "warp / SHARED_WARPS",
    ),
    "one block more": (">= blocks", "> blocks"),
    "one memory for all": ("* ELMAN_SHARE_BYTES", "* 0"),
}
# Three warps of which the last one helps; every turn it leaves 32 numbers for the others.
PROBES = """
struct Given { const unsigned char* from; float* out; long long blocks; };
namespace NAME {
using namespace elman;
DEVICE void turns(const Given& a) {
  Arena arena;
  const sptr<float> x = arena.take<float>(64);
  const Signal<64, 32> producers(arena);
  const Signal<0, 64> walked(arena);
  signals_ready();
  const int lane = thread_index() % 32;
  for (unsigned turn = 0; turn < 9; turn++) {
    if (warp_index() == 2) {
      if (turn > 1) walked.wait(turn - 2);
      store_one(x + (turn % 2 * 32 + lane), turn * 32.0f + lane);
      producers.arrive(turn);
    } else {
      producers.wait(turn);
      a.out[turn * 64 + thread_index()] = load_one(x + (turn % 2 * 32 + 31 - lane));
      walked.arrive(turn);
    }
  }
}
DEVICE void copies(const Given& a) {
  Arena arena;
  const sptr<unsigned char> x = arena.take<unsigned char>(96 * 28);
  const int t = thread_index();
  copy_async<16>(x + t * 16, a.from + t * 16, t == 95 ? 6 : 16), commit_copies();
  copy_async<4>(x + 96 * 16 + t * 4, a.from + t * 4, 2), commit_copies();
  copy_async<8>(x + 96 * 20 + t * 8, a.from + t * 8, 8), commit_copies();
  wait_copies<1>();
  for (int i = 0; i < 4; i++) a.out[t * 7 + i] = load_one(cast<float>(x + t * 16) + i);
  a.out[t * 7 + 4] = load_one(cast<float>(x + 96 * 16) + t);
  wait_copies<0>();
  sync_block();
  for (int i = 0; i < 2; i++)
    a.out[t * 7 + 5 + i] = load_one(cast<float>(x + 96 * 20 + (95 - t) * 8) + i);
  sync_warp();
}
DEVICE void numbers(const Given& a) {
  Arena arena;
  const sptr<unsigned> x = arena.take<unsigned>(96);
  const int t = thread_index();
  const float low = t - 31.5f, high = 0.25f * t + 0.1f;
  float* out = a.out + t * 7;
  x[t] = pack_bf16(low, high);
  sync_warp();
  out[0] = bits_float(x[t ^ 1] << 16), out[1] = bits_float(x[t ^ 1] & 0xffff0000u);
  const unsigned w = exchange_halves(pack_f16(low, high), t % 2);
  out[2] = low_f16(w), out[3] = high_f16(w);
  out[4] = fast_tanh(low * 0.1f), out[5] = reciprocal(high), out[6] = square_root(high);
}
}
"""
RUNS = "".join(
    f"ELMAN_KERNEL(NAME_{probe}, 96, 1, Given, NAME::{probe}(a))\nELMAN_RUN(NAME_{probe}, Given)\n"
    for probe in ("turns", "copies", "numbers")
)
# Blocks of four warps, of which two help, three of them in one of the GPU's.
SHARED_PROBE = """
struct Given { const unsigned char* from; float* out; long long blocks; };
namespace NAME {
using namespace elman;
DEVICE void shares(const Given& a) {
  Arena arena;
  const sptr<float> x = arena.take<float>(128);
  if (beyond(a.blocks)) return;
  const int t = thread_index();
  float* out = a.out + (block_index() * 128 + t) * 4;
  store_one(x + t, (float)block_index());
  sync_warp();
  out[0] += 1.0f, out[1] = threadIdx.x, out[2] = warp_index();
  out[3] = load_one(x + (t ^ 5));
}
}
ELMAN_KERNEL(NAME_shares, 128, 1, Given, NAME::shares(a))
ELMAN_RUN(NAME_shares, Given)
"""
SHARES = "#define ELMAN_SHARES 3\n#define ELMAN_SHARE_WARPS 2\n#define ELMAN_SHARE_BYTES 512\n"


class Given(ctypes.Structure):
    """What a probe receives."""

    _fields_ = (
        ("from_", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("blocks", ctypes.c_int64),
    )


def units(faults: dict[str, tuple[str, str]], probes: str, files: tuple[str, ...] = ()) -> str:
    """Return a text with the probes over the headers as they are, and over each faulty one.

    Args:
        faults: What is wrong, by old and new text.
        probes: Kernels of a namespace NAME.
        files: Headers beside device.cuh.
    """
    whole, made = "".join(map(device_text.source, ("device", *files))), ""
    given, _, rest = probes.partition("namespace NAME")
    for number, edit in enumerate([("", ""), *faults.values()]):
        assert edit[0] in whole, edit
        header = device_text.translated(whole.replace(*edit, 1) if edit[0] else whole)
        named = (header + "namespace NAME" + rest).replace("#pragma once", "")
        # Headers of their own namespaces; the emulator's is one.
        named = named.replace("namespace elman {", f"namespace elman_{number} {{")
        named = named.replace("using namespace elman;", f"using namespace elman_{number};")
        made += named.replace("NAME", f"P{number}")
    return given + made


@functools.cache
def library(shared: bool) -> ctypes.CDLL:
    """Return all probes, compiled at once."""
    head = f'#include "{emulator.CUDA_HEADER}"\n#define ELMAN_TANH_APPROX\n'
    if shared:
        return emulator.loaded(head + SHARES + units(SHARE_FAULTS, SHARED_PROBE))
    return emulator.loaded(head + units(FAULTS, PROBES + RUNS))


def outcome(probe: str, number: int, seed: int) -> tuple[str, list[float]]:
    """Run a probe; return what the emulator said, and what the probe wrote."""
    shared = probe == "shares"
    given = torch.arange(4096, dtype=torch.float32).add(0.5)
    source = given.clone()[: 96 * 4 - 2]  # the last copy of 16 bytes has 6 of them, see below
    out = torch.zeros(4096)
    args = Given(source.data_ptr(), out.data_ptr(), 5)
    kernels = library(shared)
    n_bytes = 95 * 16 + 6
    declare(kernels, [rows("source", args.from_, n_bytes)])
    kernel = kernels[f"run_P{number}_{probe}"]
    kernel.restype = ctypes.c_char_p
    blocks, threads = (2, 384) if shared else (1, 96)
    size = ctypes.c_int(3 * 512 if shared else 96 * 28)
    launched = (ctypes.c_int64(0), ctypes.c_int64(blocks), ctypes.c_int(threads), size)
    said: bytes = kernel(ctypes.byref(args), *launched, seed)
    return said.decode(), out.tolist()


def wrong(probe: str, number: int) -> str:
    """Return what is wrong with a probe's results in some order of threads; nothing is ``""``."""
    for seed in SEEDS:
        said, found = outcome(probe, number, seed)
        if said:
            return said
        try:
            EXPECTED[probe](found)
        except AssertionError:
            return "wrong numbers"
    return ""


def expect_turns(found: list[float]) -> None:
    for turn in range(TURNS):
        wanted = [turn * 32 + 31 - thread % 32 for thread in range(NUMBERS)]
        assert found[turn * NUMBERS : (turn + 1) * NUMBERS] == wanted


def expect_copies(found: list[float]) -> None:
    whole = torch.arange(4096, dtype=torch.float32).add(0.5)
    halves = whole.view(torch.int16).clone()
    halves[1::2] = 0
    half = halves.view(torch.float32)
    last = whole[:384].clone()
    last[381] = half[381]
    last[382:] = 0
    for t in range(96):
        wanted = [*last[4 * t : 4 * t + 4], half[t], *whole[2 * (95 - t) : 2 * (96 - t)]]
        assert found[7 * t : 7 * t + 7] == [float(x) for x in wanted], t


def expect_numbers(found: list[float]) -> None:
    for t in range(96):
        low, high = t - 31.5, 0.25 * t + 0.1
        pair = ((t ^ 1) - 31.5, 0.25 * (t ^ 1) + 0.1)
        halves = (high, low) if t % 2 else (low, high)
        for x, wanted in zip(found[7 * t :], (*pair, *halves), strict=False):
            assert abs(x - wanted) <= 2**-8 * abs(wanted)
        tanh, inverse, root = found[7 * t + 4 : 7 * t + 7]
        assert abs(tanh - math.tanh(0.1 * low)) <= 2**-11 * abs(math.tanh(0.1 * low)) + 1e-7
        assert abs(inverse * high - 1) < 1e-6
        assert abs(root * root / high - 1) < 1e-6


def expect_shares(found: list[float]) -> None:
    threads = [found[4 * n : 4 * n + 4] for n in range(6 * 128)]
    for n, (times, place, warp, seen) in enumerate(threads):
        block, thread = divmod(n, 128)
        assert times == (block < 5)  # each thread of each block once
        if block < 5:
            assert (warp, seen) == (thread // 32, block)
            # Lanes keep their order, and producer warps stand behind all that walk.
            assert place % 32 == thread % 32
            assert (place >= 192) == (thread >= 64)


EXPECTED = {
    "turns": expect_turns,
    "copies": expect_copies,
    "numbers": expect_numbers,
    "shares": expect_shares,
}


@pytest.mark.parametrize("probe", EXPECTED)
def test_the_header_does_what_kernels_ask_of_it(probe) -> None:
    assert wrong(probe, 0) == ""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_header_is_noticed(fault) -> None:
    number = 1 + list(FAULTS).index(fault)
    assert any(wrong(probe, number) for probe in ("turns", "copies", "numbers"))


@pytest.mark.parametrize("fault", SHARE_FAULTS)
def test_a_fault_of_shared_blocks_is_noticed(fault) -> None:
    assert wrong("shares", 1 + list(SHARE_FAULTS).index(fault))


# ---- whole kernels


@functools.cache
def compiled(text: str) -> ctypes.CDLL:
    """Return the library of a translation unit over the headers of cuda/common themselves."""
    with tempfile.TemporaryDirectory() as folder:
        root, made = Path(folder, "csrc"), Path(folder, "unit.so")
        shutil.copytree(source_folder(), root)
        device_text.translate_in(root)
        emulator.compile_unit(text, root, made)
        return ctypes.CDLL(str(made))


def start(kernels: ctypes.CDLL, wanted: Launch, args: ctypes.Structure) -> None:
    """Run a kernel over the grid of a GPU."""
    kernel = kernels[f"run_{wanted.kernel}"]
    kernel.restype = ctypes.c_char_p
    grid = (ctypes.c_int64(0), ctypes.c_int64(wanted.blocks), ctypes.c_int(wanted.threads))
    said = kernel(ctypes.byref(args), *grid, ctypes.c_int(wanted.shared_bytes), 3)
    assert not said, said


def gpu_backend(heads: int) -> Kernels:
    """Return a backend that runs all that the GPU's engine would compile for so many heads."""

    def launch(call: Call, *, backward: bool) -> None:
        chosen = choose(call.plan, cuda.types(call.plan, torch.bfloat16), heads, H200)
        chosen = emulator.fitted(
            call, chosen if backward else forward_of(chosen, heads, H200), backward
        )
        shares.add(chosen.shares)
        head = f'#include "{emulator.CUDA_HEADER}"\n#define ELMAN_TANH_APPROX\n'
        wanted = cuda.launches(chosen, call.args.B, call.args.T, backward)
        runs = "".join(f"ELMAN_RUN({one.kernel}, elman::Args)\n" for one in wanted)
        kernels = compiled(head + cuda.unit_text(chosen, backward) + runs)
        if backward:
            call.give_workspace(chosen.workspace_bytes(call.args.B, call.args.T))
        declare(kernels, of_matrix(call, chosen, backward=backward))
        for one in wanted:
            start(kernels, one, call.args)

    def steps(plan, batch, dtype) -> int:
        return choose(plan, cuda.types(plan, torch.bfloat16), heads, H200).steps

    shares.clear()
    return Kernels(launch, steps, emulator.kept_dtype)


shares: set[int] = set()
LATER = pytest.mark.slow
WHOLE = [
    ("e88-n16", 512),
    pytest.param("e88-n16", 1024, marks=LATER),
    pytest.param("e74-state-n24", 1500, marks=LATER),
    pytest.param("e88-everything", 1024, marks=LATER),
]


@pytest.mark.parametrize(("name", "heads"), WHOLE)
def test_whole_kernels_over_the_header_of_the_gpu(name, heads, monkeypatch) -> None:
    """Where the engine lets blocks share one of the GPU's, they do."""
    monkeypatch.setitem(KERNELS, "cuda", gpu_backend(heads))
    plan = build(LAYERS[name], torch.float32).plan
    leaves = leaves_of(plan, torch.bfloat16, steps=37)
    found = results(plan, leaves, False)
    assert_equal(found, results(plan, leaves, True), TOLERANCE[torch.bfloat16])
    assert (max(shares) > 1) == (heads < 1500)
