"""The cuda backend as far as a machine without a GPU can see it: shapes, dtypes, launches, errors.

Tensors here have a device of type cuda and no memory; what a kernel writes into them is proved by
tests/emulation and, on a GPU, by mode=parity.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import elman.layers
from elman.base.errors import UserError
from elman.bench.entries import entries
from elman.config.compose import compose_config
from elman.kernels import driver, launching, nvrtc
from elman.ops.add_norm import cuda as norm_cuda
from elman.ops.add_norm.op import add_rms_norm
from elman.ops.channel import custom_op as channel_custom
from elman.ops.channel.cuda import kernels as channel_cuda
from elman.ops.channel.cuda.tile_config import TileConfig as ChannelTileConfig
from elman.ops.channel.plan import Plan as ChannelPlan
from elman.ops.common.slices import Slice
from elman.ops.matrix_state import op
from elman.ops.matrix_state.abi import Call
from elman.ops.matrix_state.cuda import kernels as matrix_cuda
from elman.ops.matrix_state.plan import Plan
from elman.ops.matrix_state.stacked import DELTA, stacked_plan
from elman.parity import gate
from elman.parity.checks import Check, Proof
from elman.parity.compare import Comparison
from elman.parity.experiment import Run
from elman.training.memory.estimate import estimate_memory

GPU = torch.device("cuda", 0)
DELTA_RULE = stacked_plan("delta", 4, 16, 16, **DELTA)
LINEAR = stacked_plan("delta", 4, 16, 16, **DELTA | {"nonlinearity": "linear"})
CHANNEL = ChannelPlan("mingru", (("candidate", Slice(0, 0)), ("gate", Slice(0, 24))))


@pytest.fixture
def fake() -> Iterator[None]:
    """Let tensors have shapes, dtypes and devices alone."""
    with FakeTensorMode():
        yield


@pytest.fixture(autouse=True)
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing stand in the way of CUDA kernels."""
    monkeypatch.setattr(driver, "cuda_problem", lambda: None)


def width(plan: Plan) -> int:
    return max(place.start + plan.heads * plan.width(name) for name, place in plan.roles)


def parameters(plan: Plan, device: torch.device | str) -> list[Tensor]:
    return [torch.empty(plan.parameter_shape(n), device=device) for n in plan.parameter_names]


# ------------------------------------------------------------------------- shapes and dtypes


@pytest.mark.parametrize(
    ("plan", "dtype", "kept"),
    [
        (DELTA_RULE, torch.bfloat16, torch.float16),
        (LINEAR, torch.bfloat16, torch.bfloat16),
        (DELTA_RULE, torch.float32, torch.float32),
    ],
    ids=["tanh-bf16", "linear-bf16", "fp32"],
)
def test_matrix_state_on_a_gpu(fake, plan, dtype, kept) -> None:
    batch, steps, state = 3, 40, (3, 4, 16, 16)
    source = torch.empty(batch, steps, width(plan), dtype=dtype, device=GPU)
    given = parameters(plan, GPU)
    first = torch.empty(state, device=GPU)
    run = torch.ops.elman.matrix_state
    out, last, states, reads = run(plan.text, "cuda", True, [source], given, first, None)
    assert (out.shape, out.dtype) == ((batch, steps, 4, 16), dtype)
    assert (last.shape, last.dtype) == (state, torch.float32)
    assert reads.numel() == 0
    k = matrix_cuda.segment(plan, batch, dtype)
    assert (states.shape, states.dtype) == (((steps - 1) // k, *state), kept)
    backward = torch.ops.elman.matrix_state_backward
    found = backward(plan.text, "cuda", out, last, [source], given, first, states, reads, None)
    wanted = ([source], given, first)
    for one, like in zip([*found[0], *found[1], found[2]], [source, *given, first], strict=True):
        assert (one.shape, one.dtype, one.device) == (like.shape, like.dtype, GPU), wanted
    assert {tensor.device for tensor in (out, last, states)} == {GPU}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_channel_on_a_gpu(fake, dtype) -> None:
    source = torch.empty(3, 37, 48, dtype=dtype, device=GPU)
    first = torch.empty(3, 24, device=GPU)
    y, last, states = channel_custom.CHANNEL.operator(
        CHANNEL.text, "cuda", [source], [], first, None
    )
    assert (y.shape, y.dtype, y.device) == ((3, 37, 24), dtype, GPU)
    assert (last.shape, last.dtype) == ((3, 24), torch.float32)
    assert states.shape == (3, channel_cuda.n_segments(37), 24)
    backward = channel_custom.CHANNEL.backward_operator
    (dsource,), none, dfirst = backward(CHANNEL.text, "cuda", y, last, [source], [], states, None)
    assert (dsource.shape, dsource.dtype, dsource.device) == (source.shape, dtype, GPU)
    assert (list(none), dfirst.shape, dfirst.dtype) == ([], (3, 24), torch.float32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["bf16", "fp32"])
def test_add_and_norm_on_a_gpu(fake, dtype) -> None:
    stream = torch.empty(3, 37, 48, device=GPU)
    branch, gain = stream.to(dtype), torch.empty(48, device=GPU)
    total, normed = add_rms_norm(stream, branch, gain, dtype, backend="cuda")
    assert (total.shape, total.dtype, total.device) == (stream.shape, torch.float32, GPU)
    assert (normed.shape, normed.dtype, normed.device) == (stream.shape, dtype, GPU)
    alone, _ = add_rms_norm(stream, None, gain, dtype, backend="cuda")
    assert alone is stream
    rstd, backward = torch.empty(3, 37, device=GPU), torch.ops.elman.add_rms_norm_backward
    dstream, dbranch, dgain = backward(total, normed, total, rstd, gain, dtype, "cuda")
    assert (dstream.shape, dstream.dtype) == (stream.shape, torch.float32)
    own = dtype != torch.float32  # otherwise the stream's gradient is the branch's, too
    assert (dbranch.shape, dbranch.dtype) == (stream.shape if own else (0,), dtype)
    assert (dgain.shape, dgain.dtype, dgain.device) == ((48,), torch.float32, GPU)


@pytest.mark.parametrize("backend", ["auto", "cuda"])
@pytest.mark.parametrize(
    ("layer", "options"),
    [("E88", {"n_heads": 4, "n_state": 16}), ("E70", {}), ("E74", {}), ("E61", {})],
)
def test_layers_call_the_kernels_on_a_gpu(fake, monkeypatch, layer, options, backend) -> None:
    built = moved(getattr(elman.layers, layer)(64, **options, backend=backend))
    x = torch.empty(2, 20, 64, device=GPU)
    with torch.no_grad(), _Called() as called:
        y, state = built(x)
    assert built.backend_for(x) == "cuda"
    assert called.names & {"elman::matrix_state", "elman::channel"}
    assert (y.shape, y.device) == (x.shape, GPU)
    assert all(part.dtype == torch.float32 for part in state.values())


def moved(layer: torch.nn.Module) -> torch.nn.Module:
    """Put the weights on the GPU; without one, torch can have no gradients there."""
    for module in layer.modules():
        for name, weight in module.named_parameters(recurse=False):
            on_gpu = torch.nn.Parameter(weight.detach().to(GPU), requires_grad=False)
            module.register_parameter(name, on_gpu)
    return layer


class _Called(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.name().partition(".")[0])
        return func(*args, **(kwargs or {}))


def test_a_traced_length_stays_a_symbol() -> None:
    """One compiled graph serves every T; it has no other way through the operator."""
    given = [p.requires_grad_() for p in parameters(DELTA_RULE, "cpu")]

    def layer(source: Tensor, *numbers: Tensor) -> Tensor:
        named = dict(zip(DELTA_RULE.parameter_names, numbers, strict=True))
        return op.run(DELTA_RULE, [source], named, None, backend="cuda")[0]

    source = torch.empty(3, 20, width(DELTA_RULE), dtype=torch.bfloat16)
    traced = make_fx(layer, tracing_mode="symbolic")(source, *given)
    (node,) = (n for n in traced.graph.nodes if "matrix_state" in str(n.target))
    _, steps, *_ = node.meta["val"][0].shape
    assert isinstance(steps, torch.SymInt)


# ------------------------------------------------------------------------- launches


class Gpus:
    """Two GPUs that run nothing, and note what they are asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.current, self.entered, self.launched = 0, 0, []
        cuda = torch.cuda
        monkeypatch.setattr(cuda, "device", self.device)
        monkeypatch.setattr(cuda, "current_device", lambda: self.current)
        monkeypatch.setattr(cuda, "get_device_capability", self.capability)
        monkeypatch.setattr(cuda, "current_stream", self.stream)
        monkeypatch.setattr(launching, "STREAM", launching._public_stream)
        for module in (matrix_cuda, driver):
            monkeypatch.setattr(module, "load", self.load)
        matrix_cuda._ready.cache_clear()
        channel_cuda.COMPILED.loaded.cache_clear()

    @contextlib.contextmanager
    def device(self, device: int) -> Iterator[None]:
        before, self.current = self.current, device
        self.entered += 1
        yield
        self.current = before

    def capability(self, device: Any = None) -> tuple[int, int]:
        index = getattr(device, "index", device)
        return ((8, 0), (9, 0))[self.current if index is None else index]

    def stream(self, device: Any = None) -> SimpleNamespace:
        index = getattr(device, "index", device)
        return SimpleNamespace(cuda_stream=70 + (self.current if index is None else index))

    def load(self, unit: nvrtc.Unit) -> SimpleNamespace:
        def launch(name: str, **how: Any) -> None:
            where = (how["device"], how["stream"], self.current, unit.architecture)
            self.launched.append((name, *where))

        return SimpleNamespace(launch=launch)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpus]:
    yield Gpus(monkeypatch)
    matrix_cuda._ready.cache_clear()
    channel_cuda.COMPILED.loaded.cache_clear()


WHERE = {0: (0, 70, 0, "sm_80"), 1: (1, 71, 1, "sm_90")}
"""Of a launch, by the device of its tensors: device, stream, current device, architecture."""


@pytest.mark.parametrize("index", WHERE)
def test_matrix_kernels_run_where_the_tensors_are(gpus, monkeypatch, index) -> None:
    source = torch.zeros(1, 5, width(DELTA_RULE), dtype=torch.bfloat16)
    call = Call(DELTA_RULE, [source], [p.zero_() for p in parameters(DELTA_RULE, "cpu")], 16)
    like = SimpleNamespace(device=torch.device("cuda", index), dtype=torch.bfloat16)
    monkeypatch.setattr(Call, "like", like)
    matrix_cuda.launch(call, backward=False)
    assert gpus.launched == [("matrix_forward", *WHERE[index])]
    assert gpus.current == 0
    # Where it is the current one already, nothing has to be done for that.
    assert gpus.entered == index


@pytest.mark.parametrize("index", WHERE)
def test_channel_kernels_run_where_the_tensors_are(gpus, index) -> None:
    source, first = torch.zeros(2, 5, 48), torch.zeros(2, 24)
    call = channel_cuda._KernelCall(CHANNEL, [source], [], first)
    call.like = SimpleNamespace(device=torch.device("cuda", index))  # type: ignore[assignment]
    tile_config = ChannelTileConfig(CHANNEL, torch.float32, torch.float32)
    channel_cuda._launch(tile_config, channel_cuda.launches(tile_config, call.args, False), call)
    assert gpus.launched == [("channel_forward", *WHERE[index])]


@pytest.mark.parametrize("index", WHERE)
def test_norm_kernels_run_where_the_tensors_are(gpus, index) -> None:
    norm_cuda.COMPILED.loaded.cache_clear()
    names = ("add_norm_backward", "add_norm_finish")
    wanted = [norm_cuda.Launch(name, 1, 32, 0) for name in names]
    norm_cuda.COMPILED.launch("", wanted, norm_cuda.AddNormArgs(), torch.device("cuda", index))
    assert gpus.launched == [(name, *WHERE[index]) for name in names]


# ------------------------------------------------------------------------- errors and imports


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
@pytest.mark.parametrize("engine", ["matrix_state", "channel"])
def test_other_dtypes_are_refused_in_one_line(gpus, engine, dtype) -> None:
    source = torch.zeros(2, 5, 48, dtype=dtype)
    call = channel_cuda._KernelCall(CHANNEL, [source], [], torch.zeros(2, 24))
    tile_config = call.tile_config(backward=False)
    launches = channel_cuda.launches(tile_config, call.args, False)
    refused = {
        "matrix_state": lambda: matrix_cuda.tile_config(DELTA_RULE.text, 3, dtype, backward=True),
        "channel": lambda: channel_cuda._launch(tile_config, launches, call),
    }
    with pytest.raises(UserError) as caught:
        refused[engine]()
    assert str(caught.value) == (
        f"kernels.backend=cuda: computes on bfloat16 and float32, not on {dtype}; "
        "use kernels.backend=reference"
    )
    assert gpus.launched == []


def test_a_step_on_a_gpu_takes_less_memory_with_kernels() -> None:
    def estimate(backend: str) -> float:
        size = ["model=e88_tiny", "train.batch_size=4", "train.chunk_size=64"]
        return estimate_memory(compose_config([*size, f"kernels.backend={backend}"])).per_row

    assert 0 < estimate("cuda") < 0.7 * estimate("reference")


@pytest.mark.parametrize(("precision", "wanted"), [("bf16", ["fp32", "bf16"]), ("fp32", ["fp32"])])
def test_training_on_a_gpu_proves_the_cuda_kernel_first(
    tmp_path, monkeypatch, precision, wanted
) -> None:
    made: list[Run] = []

    def prove_runs(config: Any, runs: list[Run], **settings: Any) -> Proof:
        made.extend(runs)
        return Proof("e88_tiny", "e88", checks=[Check(runs[0], "one", "", [_WRONG])])

    monkeypatch.setattr(gate, "prove_runs", prove_runs)
    monkeypatch.setattr(gate, "kernel_cache", lambda: tmp_path)
    model = compose_config(["model=e88_tiny"]).model
    with pytest.raises(gate.ParityError, match="the cuda kernel of e88 is wrong on this machine"):
        gate.require_parity(model, "cuda", "cuda", precision, tmp_path, lambda line: None)
    assert made == [Run("cuda", "cuda", name) for name in wanted]


_WRONG = Comparison("d x", relative_l2=1.0, cosine=0.0, max_abs=1.0, tolerance=1e-4)


def test_a_benchmark_on_a_gpu_times_the_cuda_kernel() -> None:
    without = ["model=e74", "model.nonlinearity=rmsnorm"]
    models = [compose_config(given).model for given in (["model=e88_tiny"], without)]
    found, notes = entries(models, ["auto", "reference", "cuda"], "cuda")
    named = [(entry.model.name, entry.backend) for entry in found]
    assert named == [("e88_tiny", "cuda"), ("e88_tiny", "reference"), ("e74", "reference")]
    assert [note.partition(":")[0] for note in notes] == ["slow path", "e74 left out"]


def test_nothing_of_cuda_is_imported_before_a_gpu_is_used() -> None:
    program = """
import sys
import elman.cli.main, elman.cli.help, elman.models.backends, elman.kernels.nvrtc
found = {name for name in sys.modules if name.partition(".")[0] in ("cuda", "torch")}
import torch, elman.layers
layer = elman.layers.E61(16)
layer(torch.zeros(1, 2, 16))
found |= {name for name in sys.modules if name == "cuda.bindings.nvrtc"}
sys.exit(str(sorted(found)) if found else 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
