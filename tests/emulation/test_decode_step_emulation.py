"""The kernel of whole steps, run on a CPU from its own source, against the kernels of one step.

Both write the same text, and their states are equal to the bit. The machine's fast functions are
emulated with an error that any other bit of their argument changes.

Shape legend: k steps, b texts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from elman.base.errors import UserError
from elman.evaluation import generation
from elman.evaluation.generation import Writer
from elman.evaluation.sampling import Sampling
from elman.kernels.driver import Limits
from elman.kernels.launching import Launch
from elman.layers import E70, E71, E72, E73, E74, E75, E88, E97
from elman.models.blocks import mlp, norm
from elman.models.cells.common.mixer import Mixer
from elman.models.language_model import LanguageModel
from elman.models.text_step import text_kernel
from elman.ops.add_norm import cuda as add_norm
from elman.ops.causal_conv import cuda as causal_conv
from elman.ops.decode import step
from elman.ops.decode.step import DecodeArgs, DecodeLayer, StepConfig
from elman.ops.matrix_state import backends, custom_op
from elman.ops.matrix_state.cuda.heuristics import H200
from elman.ops.matrix_state.plan import PARAMETERS
from elman.ops.silu_gate import cuda as silu_gate
from elman.ops.silu_gate import op as silu_op
from tests.emulation import (
    emulator,
    test_add_norm_emulation,
    test_causal_conv_emulation,
    test_decode_emulation,
    test_silu_gate_emulation,
)
from tests.emulation.stretches import Stretch, declare, rows

pytestmark = pytest.mark.compiler

HEADERS = ("emulation/fast_grid.h",)
VALUES, HEADS, BLOCKS = 40, 2, 3
SIZES = {"warps": 2, "slots": 3, "bulk": True, "pass_rows": 16}
SAMPLING = Sampling(0.9, 20, 0.95)


def stretches(config: StepConfig, args: DecodeArgs) -> list[Stretch | None]:
    """Return what a launch may read and write."""
    one, texts, plan = config.sizes, config.rows, config.sizes.plan
    state = 4 * one.layers * texts * plan.heads * plan.rows * plan.columns
    past = 4 * one.layers * texts * max(0, one.taps - 1) * one.convolved
    read = {
        "layers": ctypes.sizeof(DecodeLayer) * one.layers,
        "embedding": 4 * one.values * one.width,
        "head": 2 * one.values * one.width,
        "final_norm": 4 * one.width,
        "first": state,
        "first_past": past,
        "uniform": 4 * texts * args.steps,
        "last": 8 * texts,
    }
    found = [rows(name, getattr(args, name), size) for name, size in read.items()]
    wide = one.width
    sizes = {
        "norm": 4 * wide,
        "in_proj": 2 * (one.inner or one.channels) * wide,
        "out_proj": 2 * config.mixed * wide,
        "cell_proj": 2 * one.inner * one.channels,
        "conv_bias": 4 * one.convolved,
        "conv": 4 * one.convolved * one.taps,
        "mlp_norm": 4 * wide,
        "mlp_in": 4 * one.hidden * wide,
        "mlp_out": 2 * one.hidden * wide,
    }
    for layer in (DecodeLayer * one.layers).from_address(args.layers):
        found += [rows(name, getattr(layer, name), size) for name, size in sizes.items()]
        for name, place in zip(PARAMETERS, layer.param, strict=True):
            if place:
                size = torch.Size(plan.parameter_shape(name)).numel()
                found.append(rows(name, place, 4 * size))
    for i in range(2):
        for name, place, size in (("state", args.states, state), ("past", args.pasts, past)):
            found.append(rows(f"{name} {i}", place[i], size, writable=True, exchanged=True))
    return [
        *found,
        rows("drawn", args.drawn, 8 * texts * args.steps, writable=True),
        rows("posts", args.posts, 8 * config.posts, writable=True),
    ]


def emulate(
    library: emulator.Library, config: StepConfig, wanted: Sequence[Launch], args: DecodeArgs
) -> None:
    """Run a launch, all its blocks at the same time."""
    (one,) = wanted
    compiled = library(step.unit_text(config, HEADERS))
    declare(compiled, stretches(config, args))
    emulator.start(compiled, one, args, 1)


def emulate_silu(config: Any, wanted: Sequence[Launch], args: Any, _: object) -> None:
    """Run a silu kernel as a GPU compiles it, with its fast tanh."""
    (one,) = wanted
    compiled = emulator.loaded(silu_gate.unit_text(config, emulator.FAST_HEADER))
    declare(compiled, test_silu_gate_emulation.stretches(config, one.kernel, args))
    emulator.start(compiled, one, args)


def choose_small(sizes: step.Sizes, texts: int, _: Limits) -> StepConfig | None:
    """Return the config of an H200 with fewer warps than it would have."""
    config = CHOOSE(sizes, texts, H200)
    return config and replace(config, blocks=BLOCKS, **SIZES)


CHOOSE = step.choose_config


@pytest.fixture(autouse=True)
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a model on the CPU compute with the kernels of a GPU."""
    loaded, patch = emulator.loaded, monkeypatch.setattr
    test_decode_emulation.emulate_everywhere(monkeypatch, loaded)
    patch(norm, "norm_backend", lambda *_: "cuda")
    patch(Mixer, "backend_for", lambda self, x: "cuda")
    patch(
        add_norm,
        "LAUNCH",
        lambda text, wanted, args, _: test_add_norm_emulation.emulate(loaded, text, wanted, args),
    )
    patch(mlp, "swiglu", lambda x, backend: silu_op.swiglu(x, backend="cuda"))
    patch(silu_gate, "LAUNCH", emulate_silu)
    emulator.stand_in(patch, causal_conv, test_causal_conv_emulation.emulate)
    # Autocast on a CPU would widen what the engine reads.
    run = SimpleNamespace(run=lambda call: custom_op.forward(call)[:2])
    patch(backends, "MATRIX_STATE", run)
    patch(step, "LAUNCH", lambda *call: emulate(loaded, *call[:3]))
    patch(step, "LIMITS", lambda device: replace(H200, multiprocessors=BLOCKS))
    patch(step, "choose_config", choose_small)


def model_of(
    cell: Callable[..., Mixer] = E88, width: int = 40, hidden: int = 0, **options: Any
) -> LanguageModel:
    """Return a model whose text is not of one byte."""
    torch.manual_seed(1)
    options = {"n_state": 8} | ({"n_heads": HEADS} if cell is E88 else {}) | options
    mixers = [cell(width, **options) for _ in range(2)]
    made = LanguageModel(width, mixers, vocab_size=VALUES, mlp_widths=[hidden] * 2).eval()
    with torch.no_grad():
        made.embedding.normal_(0, 0.3)
        for mixer in mixers:
            mixer.get_parameter("out_proj").mul_(8)
    return made


def written(
    model: LanguageModel, texts: int, count: int, sampling: Sampling = SAMPLING, **how: Any
) -> tuple[list[bytes], Writer]:
    """Return what a model writes, and the writer."""
    writer = Writer(model, sampling, seed=3, bf16=True, kernels=True, **how)
    writer.read([bytes([i + 1, 2]) for i in range(texts)])
    pieces = list(writer.write(count))
    return [b"".join(row) for row in zip(*pieces, strict=True)], writer


MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gate and convolution": {"use_gate": True, "use_conv": True},
    "linear state": {"linear_state": True, "use_value_residual": True, "decay_mode": "constant"},
    "write gate": {"use_write_gate": True, "use_self_gate": True, "decay_mode": "simple"},
    "no decay, tied values": {"decay_mode": "none", "tie_kv": True, "use_l2_norm": False},
    "mlp": {"hidden": 24},
    "row tiles that are not full": {"n_state": 12, "expansion": 2.0, "width": 48},
    "rows of other heads": {"n_state": 4, "n_heads": 6, "use_silu": False},
    "warps without a value": {"warps": 6, "slots": 1},
    "rows in passes": {"pass_rows": 4, "use_gate": True, "use_conv": True},
    "wide rows": {"width": 264, "hidden": 520, "pass_rows": 4},
    "lanes that copy": {"width": 264, "hidden": 520, "slots": 2, "bulk": False},
    "warps for each chunk": {"width": 520, "n_heads": 6, "n_state": 48, "warps": 5},
    "e97": {"cell": E97, "n_heads": 2},
    "e70": {"cell": E70, "n_state": 16},
    "e71, convolution": {"cell": E71, "use_conv": True},
    "e72": {"cell": E72},
    "e73": {"cell": E73},
    "e74": {"cell": E74},
    "e75": {"cell": E75, "n_heads": 2},
    "e75, convolution behind": {"cell": E75, "n_heads": 2, "conv_mode": "post", "use_conv": True},
}


@pytest.mark.parametrize("texts", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_whole_steps_write_the_same_text_to_the_bit(
    name: str, texts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = dict(MODELS[name])
    for name in SIZES:
        monkeypatch.setitem(SIZES, name, options.pop(name, SIZES[name]))
    layer: Any = model_of(**options).layers[0]
    heads = layer.plan.heads * texts
    monkeypatch.setitem(custom_op.KERNELS, "cuda", emulator.engine(heads))
    monkeypatch.setattr(generation, "_LONG_BLOCK", 5)  # two launches, the second with one step
    eager, one = written(model_of(**options), texts, 8)
    fused, other = written(model_of(**options), texts, 8, fused=True)
    assert not one.fused
    assert other.fused
    assert fused == eager
    found, wanted = (writer.state()[0][0].states for writer in (other, one))
    assert found is not None
    assert wanted is not None
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours.keys() == theirs.keys()
        for part in ours:
            assert torch.equal(ours[part], theirs[part]), part


def test_unless_requested_the_kernel_is_taken_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(custom_op.KERNELS, "cuda", emulator.engine(2 * HEADS))
    for options, texts, why in (
        ({}, 1, ""),
        ({}, 2, ""),
        ({"hidden": 24}, 1, "was not measured for such layers"),
        ({"width": 1544}, 2, "was not measured for such layers and 2 texts"),
    ):
        writer = written(model_of(**options), texts, 4, fused=None)[1]
        assert writer.fused == (not why)
        assert why in writer.unfused


@pytest.mark.parametrize(
    ("options", "texts", "why"),
    [
        ({}, 5, "5 texts at a time, and it writes at most 4"),
        ({"head_mix": "sum"}, 1, "the cell or one of its options has none"),
        ({"width": 36}, 1, "widths are no multiples of 8"),
    ],
)
def test_a_requested_kernel_that_does_not_exist_is_an_error(
    options: dict[str, Any], texts: int, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(custom_op.KERNELS, "cuda", emulator.engine(texts * HEADS))
    monkeypatch.setattr(generation._Steps, "block", take_states)
    with pytest.raises(UserError, match=f"generate.fused=true: .*{why}"):
        written(model_of(**options), texts, 4, fused=True)


def take_states(steps: Any, uniform_kb: torch.Tensor) -> Callable[[], list[bytes]]:
    """Give steps the states that eager ones would."""
    size, texts = uniform_kb.shape
    steps.taken += size
    steps.states = [{"S": torch.zeros(texts, HEADS, 8, 8)}] * 2
    return lambda: [bytes(size)] * texts


def test_a_launch_is_queued_before_the_bytes_of_the_last_one_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(custom_op.KERNELS, "cuda", emulator.engine(HEADS))
    monkeypatch.setattr(generation, "_LONG_BLOCK", 2)
    order: list[str] = []
    launch, begin = step.LAUNCH, generation.on_its_way

    def launched(*call: Any) -> None:
        order.append("launch")
        launch(*call)

    def sent(drawn_kb: torch.Tensor) -> Callable[[], torch.Tensor]:
        wait = begin(drawn_kb)
        return lambda: (order.append("read"), wait())[1]

    monkeypatch.setattr(step, "LAUNCH", launched)
    monkeypatch.setattr(generation, "on_its_way", sent)
    assert len(written(model_of(), 1, 8, fused=True)[0][0]) == 8
    assert order == ["read", "launch", "launch", "read", "launch", "read", "read"]


@pytest.mark.parametrize("options", [{}, {"cell": E71, "use_conv": True}])
def test_a_text_that_was_left_goes_on_as_if_nothing_had_run_ahead(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer: Any = model_of(**options).layers[0]
    monkeypatch.setitem(custom_op.KERNELS, "cuda", emulator.engine(layer.plan.heads))
    monkeypatch.setattr(generation, "_LONG_BLOCK", 3)
    whole, one = written(model_of(**options), 1, 12)
    writer = written(model_of(**options), 1, 0, fused=True)[1]
    pieces = writer.write(12)
    first = next(pieces)[0] + next(pieces)[0]
    assert writer.fused
    assert writer.state()[2] == len(first) == 5
    pieces.close()
    rest = b"".join(piece for (piece,) in writer.write(7))
    assert first + rest == whole[0]
    for ours, theirs in zip(*(w.state()[0][0].states for w in (writer, one)), strict=True):
        assert all(torch.equal(ours[part], theirs[part]) for part in theirs)


@pytest.mark.parametrize("other", [{"expansion": 2.0}, {"use_conv": True, "d_conv": 3}])
def test_layers_that_are_unlike_have_no_kernel(other: dict[str, Any]) -> None:
    model = model_of(use_conv=True)
    model.layers[1] = E88(40, n_heads=HEADS, n_state=8, **other)
    assert text_kernel(model, [], lambda weight: weight) == "the layers are unlike"


STEP, PRODUCT = "cuda/decode/step.cuh", "cuda/decode/product.cuh"
FAULTS = {
    "sums before they are there": (PRODUCT, "meet();\n      post_sums", "post_sums"),
    "sums in use are written to": (PRODUCT, "if (pass + 1 < PASSES) meet();", ""),
    "states nobody is told of": (STEP, "product<D::HEAD, TELLS>", "product<D::HEAD, false>"),
    "states that nobody waits for": (STEP, "take<D::HEAD, TELLS>", "take<D::HEAD, false>"),
    "copies in use before they are there": (PRODUCT, "wait_copies<D::SLOTS - 1>()", ""),
    "weights in use before they are there": (PRODUCT, "boxes.wait(slot, round);", ""),
    "weights of the round before": (PRODUCT, "boxes.wait(slot, round);", "boxes.wait(slot, 0);"),
    "weights in use are written to": (
        PRODUCT,
        "if (pass >= D::SLOTS) boxes.wait(D::USED_BOX + to, pass / D::SLOTS - 1);",
        "if (pass > D::SLOTS) boxes.wait(D::USED_BOX + to, pass / D::SLOTS - 1);",
    ),
    "a slot that is still to be used": (
        PRODUCT,
        "boxes.pass(D::USED_BOX + slot);",
        "boxes.pass(D::USED_BOX + (slot + 1) % D::SLOTS);",
    ),
    "a barrier of some warps": (PRODUCT, "sync_first<D::THREADS>()", "sync_warp()"),
    "boxes that nobody made": (STEP, "thread_index() < D::BOXES", "thread_index() < D::SLOTS"),
    "a block that is not split": (STEP, "if constexpr (D::BULK) split_block<THREADS>();", ""),
    "a turn that is not over": (PRODUCT, "((unsigned)a.turn + step)", "(unsigned)a.turn"),
    "a row of the block beside": (
        PRODUCT,
        "line(KIND) + task, turn",
        "line(KIND) + (task ^ 1), turn",
    ),
    "signs of chunks": (PRODUCT, "y += load_one(partial", "y = -y + load_one(partial"),
    "weights of another chunk": (
        PRODUCT,
        "read_weights<KIND>(to, warp);",
        "read_weights<KIND>(to, 0);",
    ),
    "sums that others still write": (
        STEP,
        "store_one(sums + unit(i), squares);\n    }\n    meet();",
        "store_one(sums + unit(i), squares);\n    }",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_kernel_is_noticed(
    fault: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file, *texts = FAULTS[fault]
    library = emulator.faulty(tmp_path, file, (texts[0], texts[1]))
    # Blocks read the past of a convolution that others wrote. Warps share the chunks of wide rows.
    options: dict[str, Any] = {"cell": E71, "use_conv": True} if "states" in fault else {}
    if fault.startswith(("sums before", "sums in use", "signs", "weights in use are")):
        options |= {"width": 264}
    if fault == "weights of another chunk":
        options |= {"width": 136}
    if fault.startswith("copies"):
        monkeypatch.setitem(SIZES, "bulk", False)
    layer: Any = model_of(**options).layers[0]
    monkeypatch.setitem(custom_op.KERNELS, "cuda", emulator.engine(layer.plan.heads))
    eager, _ = written(model_of(**options), 1, 8)
    monkeypatch.setattr(step, "LAUNCH", lambda *call: emulate(library, *call[:3]))

    def run() -> None:
        assert written(model_of(**options), 1, 8, fused=True)[0] == eager

    assert emulator.noticed(run)
