"""The decoding kernels, run on a CPU from their own source, against fp64 and plain PyTorch.

Shape legend: r rows, i input channels, o output channels, b texts, v values.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from elman.kernels.launching import Launch
from elman.ops.decode import launches, reference
from elman.ops.decode.draw import draw_into
from elman.ops.decode.row_product import MOST_ROWS, RowProductArgs, fits, row_product
from elman.ops.linear import KeptCopies, linear
from tests.emulation import emulator
from tests.emulation.stretches import Stretch, declare, rows

LIMITS = {torch.bfloat16: 4e-3, torch.float16: 5e-4, torch.float32: 1e-6}


def stretches_of(text: str, args: ctypes.Structure) -> list[Stretch | None]:
    """Return the tensors of a launch, whose text says dtype and sizes."""
    match = re.search(r"TileConfig<(\S+), (\d+)(?:, \d+, (\d+), \d+)?>", text)
    tiles = re.search(r"TileProductConfig<(\d+), (\d+)", text)
    found = ("bf16", tiles[1], tiles[2]) if tiles else match and match.groups()
    assert found, text
    size, width = 4 if found[0] == "float" else 2, int(found[1])
    if isinstance(args, RowProductArgs):
        given, outputs = int(found[2]), args.outputs
        read = {"x": given * width * size, "weight": outputs * width * size}
        written = {"y": given * outputs * size}
    else:
        steps = ctypes.c_int64.from_address(args.place).value + 1
        read = {"logits": args.texts * width * size, "uniform": steps * args.texts * 4, "place": 8}
        written = {"last": args.texts * 8, "drawn": steps * args.texts * 8}
    return [
        rows(
            name,
            getattr(args, name),
            count,
            writable=sizes is written,
            settled=name == "weight",
        )
        for sizes in (read, written)
        for name, count in sizes.items()
    ]


def emulate(
    library: emulator.Library, text: str, one: Launch, args: ctypes.Structure, seed: int = 1
) -> None:
    """Run one kernel of a translation unit on CPU tensors."""
    own = '#include "cuda/common/device.cuh"\n'
    both = own + '#include "cuda/common/cluster.cuh"\n'
    text = text.replace(both, f'#include "{emulator.CLUSTER_HEADER}"\n')
    kernels = library(text.replace(own, f'#include "{emulator.HEADER}"\n'))
    declare(kernels, stretches_of(text, args))
    emulator.start(kernels, one, args, seed)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    emulate_everywhere(monkeypatch, emulator.loaded)


def emulate_everywhere(
    monkeypatch: pytest.MonkeyPatch, library: emulator.Library, seed: int = 1
) -> None:
    """Run the kernels on CPU tensors, with NaN wherever nothing was written."""

    def launch(text: str, wanted: Sequence[Launch], args: ctypes.Structure, device: object) -> None:
        (one,) = wanted
        emulate(library, text, one, args, seed)

    monkeypatch.setattr(launches, "LAUNCH", launch)
    new_empty = Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *a, **k: new_empty(*a, **k).fill_(torch.nan))


def normal(*shape: int, dtype: torch.dtype, shift: int = 0) -> Tensor:
    """Return numbers, ``shift`` of them away from a boundary."""
    generator = torch.Generator().manual_seed(sum(shape))
    flat = torch.randn(torch.Size(shape).numel() + shift, generator=generator).to(dtype)
    return flat[shift:].view(shape)


# Rows, width and outputs.
PRODUCTS = [(1, 1536, 9), (1, 37, 5), (4, 264, 6), (3, 8, 1), (2, 2305, 3), (1, 1, 4)]
PRODUCTS += [(2, 1664, 9), (1, 6152, 3)]  # warps without a last chunk, and with more than fit


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize(("rows", "width", "outputs"), PRODUCTS)
def test_products_of_rows_are_those_of_fp64(dtype, rows, width, outputs) -> None:
    x_ri, weight_oi = normal(rows, width, dtype=dtype), normal(outputs, width, dtype=dtype)
    assert fits(x_ri, weight_oi)
    found = row_product(x_ri.unsqueeze(1), weight_oi)
    assert found.shape == (rows, 1, outputs)
    assert found.dtype == dtype
    exact = x_ri.double() @ weight_oi.double().T
    assert (found.squeeze(1).double() - exact).norm() <= LIMITS[dtype] * exact.norm()


@pytest.mark.parametrize("shift", [1, 4])
def test_weights_off_a_boundary_are_read_too(shift) -> None:
    x_ri = normal(1, 40, dtype=torch.bfloat16, shift=1)
    weight_oi = normal(7, 40, dtype=torch.bfloat16, shift=shift)
    exact = x_ri.double() @ weight_oi.double().T
    assert (row_product(x_ri, weight_oi).double() - exact).norm() <= 4e-3 * exact.norm()


def test_what_the_product_leaves_to_pytorch() -> None:
    weight_oi = normal(6, 8, dtype=torch.float32)
    assert fits(normal(MOST_ROWS, 8, dtype=torch.float32), weight_oi)
    assert not fits(normal(MOST_ROWS + 1, 8, dtype=torch.float32), weight_oi)
    assert not fits(normal(1, 6, dtype=torch.float32), weight_oi.T)
    assert not fits(normal(0, 8, dtype=torch.float32), weight_oi)
    assert not fits(normal(1, 8, dtype=torch.float64), weight_oi.double())


@torch.no_grad()
def test_a_linear_map_takes_the_kernel_while_a_text_is_written() -> None:
    weight_oi = torch.nn.Parameter(normal(6, 8, dtype=torch.float32))
    x_bti = normal(1, 1, 8, dtype=torch.float32)
    copies = KeptCopies("cpu", few_rows=True)
    with torch.autocast("cpu", torch.bfloat16), copies.read():
        found = linear(x_bti, weight_oi)
        again = linear(x_bti, weight_oi)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, again)
    exact = torch.nn.functional.linear(x_bti.bfloat16().double(), weight_oi.bfloat16().double())
    torch.testing.assert_close(found.double(), exact, rtol=4e-3, atol=1e-3)
    with torch.autocast("cpu", torch.bfloat16):
        outside = linear(x_bti, weight_oi)
    torch.testing.assert_close(outside, found)


HOW = [
    {"temperature": 0.0, "top_k": 0, "top_p": 1.0},
    {"temperature": 1.0, "top_k": 0, "top_p": 1.0},
    {"temperature": 0.7, "top_k": 5, "top_p": 1.0},
    {"temperature": 1.3, "top_k": 0, "top_p": 0.6},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 1, "top_p": 0.1},
]


VALUES = [256, 33, 3, 300]


def check_draws(logits_bv: Tensor, readable_bv: Tensor, how: dict[str, float]) -> None:
    """Compare three steps with plain PyTorch, which is given logits that are all numbers."""
    texts = len(logits_bv)
    uniform_kb = torch.rand(3, texts, generator=torch.Generator().manual_seed(1))
    uniform_kb[2] = torch.tensor([0.0, 1 - 2**-24, 0.5, 1e-7, 0.999])[:texts]
    last_b1 = torch.full((texts, 1), -1)
    drawn_kb = torch.full((3, texts), -1)
    for step in range(3):
        place_1 = torch.tensor([step])
        draw_into(logits_bv, uniform_kb, place_1, last_b1, drawn_kb, **how)
        wanted = reference.draw(readable_bv, uniform_kb[step], **how)
        assert drawn_kb[step].tolist() == wanted.tolist()
        assert last_b1[:, 0].tolist() == wanted.tolist()


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("how", HOW)
def test_the_kernel_draws_what_plain_pytorch_draws(how, values) -> None:
    logits_bv = 2 * normal(5, values, dtype=torch.float32)
    logits_bv[:, 1] = logits_bv[:, 0]  # of equal ones the smaller is first
    check_draws(logits_bv, logits_bv, how)


# Their exponentials are infinite, or all 0.
FAR = [200.0, -200.0]


@pytest.mark.parametrize("far", FAR)
def test_logits_far_from_0_are_drawn_from(far) -> None:
    logits_bv = 2 * normal(5, 33, dtype=torch.float32) + far
    check_draws(logits_bv, logits_bv, HOW[1])


@pytest.mark.parametrize("how", HOW[:2])
def test_a_logit_that_is_no_number_is_the_least(how) -> None:
    readable_bv = normal(3, 3, dtype=torch.float32).fill_diagonal_(-torch.inf)
    check_draws(readable_bv.clone().fill_diagonal_(torch.nan), readable_bv, how)


@pytest.mark.parametrize("how", HOW[:2])
def test_the_two_zeros_are_equal(how) -> None:
    logits_bv = normal(5, 256, dtype=torch.float32).sign().clamp(max=0) * 0.0
    assert len({math.copysign(1, x) for x in logits_bv.flatten().tolist()}) == 2
    check_draws(logits_bv, logits_bv, how)


def test_equal_logits_are_in_the_order_of_the_values() -> None:
    check_draws(torch.zeros(5, 300), torch.zeros(5, 300), HOW[1])
    logits_bv = normal(5, 300, dtype=torch.float32).round()
    check_draws(logits_bv, logits_bv, HOW[4])


def test_narrow_logits_are_drawn_from() -> None:
    how = HOW[4]
    logits_bv = normal(2, 256, dtype=torch.bfloat16)
    uniform_kb, drawn_kb = torch.rand(1, 2), torch.full((1, 2), -1)
    place_1, last_b1 = torch.zeros(1, dtype=torch.long), torch.full((2, 1), -1)
    draw_into(logits_bv, uniform_kb, place_1, last_b1, drawn_kb, **how)
    wanted = reference.draw(logits_bv.float(), uniform_kb[0], **how)
    assert drawn_kb[0].tolist() == wanted.tolist()


def test_logits_that_are_no_numbers_read_nothing_out_of_bounds() -> None:
    logits_bv = torch.full((1, 256), torch.nan)
    drawn_kb = torch.full((1, 1), -1)
    places = torch.zeros(1, dtype=torch.long), torch.full((1, 1), -1), drawn_kb
    draw_into(logits_bv, torch.rand(1, 1), *places, **HOW[1])
    assert 0 <= int(drawn_kb) < 256
