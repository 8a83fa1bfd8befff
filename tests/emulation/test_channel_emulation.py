"""The channel engine's CUDA kernels, run on a CPU from their own sources, against the reference."""

from __future__ import annotations

import pytest
import torch

from elman.base.errors import UserError
from elman.kernels.sources import included_sources
from elman.ops.channel import custom_op
from elman.ops.channel.cuda import kernels
from elman.ops.channel.cuda.tile_config import TileConfig, Tuning
from elman.ops.channel.plan import parse
from elman.ops.channel.recurrences import CELLS
from tests.emulation import channel_emulator, emulator
from tests.ops.channel.test_channel_kernels import (
    PLANS,
    call,
    check,
    draw,
    everything,
    identical,
    wanted,
)

pytestmark = pytest.mark.compiler

SIZE = (2, 37, 5)  # two whole segments and a rest


def emulate(
    tile_config: TileConfig, launches: list[kernels.Launch], made: kernels._KernelCall
) -> None:
    """Run the kernels of a pass."""
    channel_emulator.run(emulator.loaded, tile_config, launches, made.args)


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the operators call the GPU's code, with NaN wherever nothing was written."""
    monkeypatch.setattr(kernels, "LAUNCH", emulate)
    # The tests call the backend cpu, too; here both run the GPU's code.
    monkeypatch.setitem(custom_op.KERNELS, "cpu", custom_op.KERNELS["cuda"])
    emulator.poison(monkeypatch.setattr)


@pytest.mark.parametrize("name", PLANS)
def test_outputs_and_gradients_are_those_of_the_fp64_reference(name) -> None:
    plan = PLANS[name](SIZE[2])
    check(everything(plan, draw(plan, SIZE), "cpu"), wanted(name, SIZE), 1e-11)


@pytest.mark.parametrize("name", ["e59b", "e65", "e68_inverse", "minlstm", "e74-tied-kvq"])
@pytest.mark.parametrize("channels", [8, 35], ids=["even", "odd"])
def test_bf16_in_and_out(name, channels) -> None:
    plan, size = PLANS[name](channels), (2, 19, channels)
    leaves = draw(plan, size, torch.float32)
    leaves["source"] = leaves["source"].detach().to(torch.bfloat16).requires_grad_()
    found = everything(plan, leaves, "cuda")
    wide = {n: leaf.detach().double().requires_grad_() for n, leaf in leaves.items()}
    assert found["y"].dtype == torch.bfloat16
    y, last = call(plan, wide, "reference")
    generator = torch.Generator().manual_seed(2)
    pulls = [
        torch.randn(t.shape, dtype=torch.float64, generator=generator).to(dtype).double()
        for t, dtype in ((y, torch.bfloat16), (last, torch.float32))
    ]
    gradients = torch.autograd.grad([y, last], list(wide.values()), pulls)
    exact = {"y": y, "last": last} | {f"d {n}": g for n, g in zip(wide, gradients, strict=True)}
    check(found, exact, 6e-3)


@pytest.mark.parametrize("steps", [1, 16], ids=["one-step", "one-segment"])
@pytest.mark.parametrize("reached", ["output", "last"])
def test_short_sequences(steps, reached) -> None:
    size = (2, steps, 5)
    plan = PLANS["e68"](5)
    check(everything(plan, draw(plan, size), "cpu", reached), wanted("e68", size, reached), 1e-11)


@pytest.mark.parametrize("size", [(2, 0, 5), (0, 5, 5)], ids=["no-steps", "no-sequences"])
@pytest.mark.parametrize("name", ["e68", "e74-tied-kq"])
def test_nothing_to_do(name, size) -> None:
    """The state goes through, and parameters get no gradient."""
    plan = PLANS[name](5)
    leaves = draw(plan, size)
    found = everything(plan, leaves, "cpu")
    generator = torch.Generator().manual_seed(2)
    pull = torch.randn(size[0], 5, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(found["last"], leaves["state"].detach(), rtol=0, atol=0)
    torch.testing.assert_close(found["d state"], pull, rtol=0, atol=0)
    assert not any(found[f"d {name}"].any() for name in CELLS[plan.step].parameters)


RESETS = {  # with segments of 16 steps
    "rows-differ": [(0, 0), (1, 1), (0, 20), (1, 9), (1, 36)],
    "kept-states": [(0, 16), (1, 15), (1, 17)],
}


@pytest.mark.parametrize("where", RESETS.values(), ids=RESETS)
@pytest.mark.parametrize("name", PLANS)
def test_resets(name, where) -> None:
    """The state before a step is zero where it says so, and no gradient goes back from there."""
    plan, resets_bt = PLANS[name](SIZE[2]), torch.zeros(SIZE[:2], dtype=torch.bool)
    for b, t in where:
        resets_bt[b, t] = True
    leaves = draw(plan, SIZE)
    found = everything(plan, leaves, "cpu", resets_bt=resets_bt)
    check(found, everything(plan, leaves, "reference", resets_bt=resets_bt), 1e-11)
    assert (found["d state"][resets_bt[:, 0]] == 0).all()


@pytest.mark.parametrize("name", ["e65", "e74_state_rmsnorm"])
def test_resets_that_are_nowhere_change_no_bit(name) -> None:
    plan = PLANS[name](35)
    leaves = draw(plan, (2, 37, 35), torch.float32)
    resets_bt = torch.zeros(2, 37, dtype=torch.bool)
    found = everything(plan, leaves, "cpu", resets_bt=resets_bt)
    identical(found, everything(plan, leaves, "cpu"))


TUNINGS = {
    "two-stages": Tuning(8, 2, 1),
    "four-stages": Tuning(8, 4, 3),
    "long": Tuning(32, 2, 4),
}


@pytest.mark.parametrize("name", ["e59b", "e74-tied-kq"])
@pytest.mark.parametrize("tuning", TUNINGS.values(), ids=TUNINGS)
def test_tuning_changes_no_number(tuning, name, monkeypatch) -> None:
    """Not even their last bits, since every sum has one order."""
    plan = PLANS[name](35)
    leaves = draw(plan, (2, 37, 35), torch.float32)
    generator = torch.Generator().manual_seed(4)
    resets_bt = torch.rand(2, 37, generator=generator) < 0.2
    before = [everything(plan, leaves, "cpu", resets_bt=resets) for resets in (None, resets_bt)]
    monkeypatch.setattr(kernels, "TUNING", tuning)
    for resets, same in zip((None, resets_bt), before, strict=True):
        identical(everything(plan, leaves, "cpu", resets_bt=resets), same)


@pytest.mark.parametrize(
    ("dtype", "channels", "start", "unit"),
    [
        pytest.param(torch.bfloat16, 40, 8, 16, id="even"),
        pytest.param(torch.bfloat16, 40, 1, 4, id="middle-of-a-word"),
        pytest.param(torch.bfloat16, 40, 2, 4, id="next-word"),
        pytest.param(torch.bfloat16, 33, 0, 4, id="odd-width"),
        pytest.param(torch.float32, 33, 1, 4, id="fp32"),
    ],
)
def test_sources_may_begin_anywhere(dtype, channels, start, unit) -> None:
    """How sequences lie decides how many bytes are copied at once, and changes no number."""
    plan = PLANS["e65"](channels)
    leaves = draw(plan, (2, 9, channels), torch.float32)
    narrow = leaves["source"].detach().to(dtype)
    before = everything(plan, leaves | {"source": narrow.clone().requires_grad_()}, "cuda")
    wide = torch.zeros(2, 9, narrow.shape[2] + 16, dtype=dtype)
    wide[..., start : start - 16] = narrow
    moved = wide[..., start : start - 16].requires_grad_()
    parameters = [leaves[name] for name in CELLS["e65"].parameters]
    made = kernels._KernelCall(plan, [moved], parameters, leaves["state"])
    assert made.tile_config(backward=False).unit == unit
    identical(everything(plan, leaves | {"source": moved}, "cuda"), before)


@pytest.mark.parametrize("channels", [300, 601, 2100], ids=["two", "four", "eight"])
def test_several_channels_of_a_thread(channels) -> None:
    """A block owns all channels of a sequence, where a norm reads them."""
    plan, size = PLANS["e59b"](channels), (1, 3, channels)
    found = everything(plan, draw(plan, size, torch.float32), "cpu")
    check(found, wanted("e59b", size), 1e-5)


def test_sequences_of_one_step_reach_the_first_state() -> None:
    for size in ((1, 1, 5), (1, 1, 33)):
        plan = PLANS["e59"](size[2])
        check(everything(plan, draw(plan, size), "cpu"), wanted("e59", size), 1e-11)


@pytest.mark.parametrize(
    ("step", "dtype", "most"),
    [("e59", torch.bfloat16, 8192), ("e59", torch.float32, 4096), ("e59b", torch.float32, 2560)],
)
def test_more_channels_than_a_block_has_room_for_are_refused(step, dtype, most) -> None:
    plan = PLANS[step](most)
    given = (dtype, torch.float32, Tuning(), 16)
    assert kernels.tile_config_for(plan, *given, most).threads <= 1024
    with pytest.raises(UserError) as caught:
        kernels.tile_config_for(plan, *given, most + 2048)
    assert str(caught.value) == (
        f"kernels.backend=cuda: step {step} has a norm over {most + 2048} channels, more than a "
        f"block has room for in {dtype}; use kernels.backend=reference or a narrower model"
    )


@pytest.mark.parametrize(("name", "files"), [("e74-key-alone", 3), ("e59", 4)])
def test_what_is_emulated_is_what_nvrtc_compiles(name, files) -> None:
    """Same text, same sources: but for the one header that says what the machine answers."""
    plan = parse(PLANS[name](4).text)
    tile_config = kernels.tile_config_for(plan, torch.bfloat16, torch.float32, Tuning(), 16, 4)
    compiled, emulated = (
        kernels.unit_text(tile_config, *header) for header in ((), (emulator.HEADER,))
    )
    assert emulated == compiled.replace("cuda/common/device.cuh", emulator.HEADER)
    assert ("channel_norms_backward" in compiled) == (plan.unit is not None)
    shared = {path for path in included_sources(emulated) if path.parent.name != "emulation"}
    assert shared == {path for path in included_sources(compiled) if path.name != "device.cuh"}
    engine = [path for path in shared if path.match("cuda/channel/*.cuh")]
    assert len(engine) == files
    assert not any("#if" in path.read_text() for path in engine)
