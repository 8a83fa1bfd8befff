"""``mode=bench`` on a GPU: what is replayed as CUDA graphs. Tapes stand for the graphs here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elman.base.consoles import table_console
from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.bench import operations, replays, subjects
from elman.bench.build import step_subjects
from elman.bench.entries import benched_models, entries
from elman.bench.operations import look_into
from elman.bench.replays import device_seconds, record_layers
from elman.bench.subjects import LayerSubject
from elman.cli.main import main
from elman.config.compose import compose_config
from elman.report.tables.bench import print_bench
from elman.training import cuda_graph
from tests.training.tapes import Tape, Tapes

CPU, GPU = torch.device("cpu"), torch.device("cuda")


class Layer(nn.Module):
    """A product, and something that waits for the device if it shall."""

    def __init__(self, *, waits: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.weight = nn.Parameter(torch.randn(4, 4))
        self._waits = waits

    def forward(self, x_btd: Tensor) -> Tensor:
        y_btd = (x_btd @ self.weight).square()
        return y_btd * float(y_btd.detach().max()) if self._waits else y_btd


@pytest.fixture(autouse=True)
def tapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing need a GPU. A part is recorded after another has run, so its numbers stay."""
    monkeypatch.setattr(Tape, "wipe", lambda self: None)
    for module in (replays, cuda_graph):
        monkeypatch.setattr(module, "CudaGraphs", lambda device: Tapes(CPU))


def subject_of(layer: nn.Module, name: str = "own", backend: str = "cuda") -> LayerSubject:
    return LayerSubject(name, layer, torch.ones(2, 3, 4), backend, "fp32")


def test_a_replayed_layer_computes_what_an_eager_one_does() -> None:
    eager, replayed = subject_of(Layer()), subject_of(Layer())
    assert record_layers([replayed], "auto", GPU) == []
    assert replayed.replayed
    marks: list[str] = []
    for _ in range(3):
        replayed.iterate(marks.append)
    assert marks == ["forward", "backward", "optimiser"] * 3
    for _ in range(5):  # a tape runs what it records, and an iteration comes before that
        eager.iterate(lambda part: None)
    assert torch.equal(replayed.weights()[0], eager.weights()[0])
    replayed.loss_and_gradients()  # which is not replayed, and leaves no gradient
    assert replayed.weights()[0].grad is None


def test_what_is_recorded_is_what_training_would_replay() -> None:
    names = {"cuda": True, "triton": True, "torch.nn": True, "reference": False}
    subjects = {backend: subject_of(Layer(), backend=backend) for backend in names}
    assert record_layers(list(subjects.values()), "auto", GPU) == []
    assert {backend: one.replayed for backend, one in subjects.items()} == names
    for graph, device in ((False, GPU), ("auto", CPU)):
        alone = subject_of(Layer())
        assert record_layers([alone], graph, device) == []  # type: ignore[arg-type]
        assert not alone.replayed
    asked = subject_of(Layer(), backend="reference")
    assert record_layers([asked], True, GPU) == []
    assert asked.replayed


def test_a_layer_that_cannot_be_recorded_is_said_or_refused() -> None:
    waiting = subject_of(Layer(waits=True), "peer", "plain path")
    (note,) = record_layers([waiting], "auto", GPU)
    assert note.startswith("peer, plain path: launched by Python, one operation at a time")
    assert "operation not permitted when stream is capturing" in note
    assert not waiting.replayed
    waiting.iterate(lambda part: None)
    with pytest.raises(UserError, match=r"bench.graph=true: peer on plain path .* use bench"):
        record_layers([waiting], True, GPU)


def test_a_graph_without_a_gpu_is_refused(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = ["mode=bench", "model=e61", "bench.graph=true", "bench.device=cpu"]
    assert main(given) == ExitStatus.USER_ERROR
    wanted = (
        "elman: error: bench.graph=true: a CUDA graph needs a GPU, and the benchmark runs on cpu "
        "here; use bench.graph=auto"
    )
    assert capsys.readouterr().err.splitlines()[-1] == wanted


class CountingClock:
    """A clock of which every call of the work takes 0.25 ms."""

    calls = 0

    def start(self) -> None:
        self._before = CountingClock.calls

    def mark(self, part: str) -> None:
        self._part = part

    def read(self) -> dict[str, float]:
        return {self._part: 2.5e-4 * (CountingClock.calls - self._before)}


class Repeats:
    """Records work, and does it again."""

    def __init__(self, device: torch.device) -> None:
        self.aside = Tapes(CPU).aside

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        return work


def test_a_graph_of_several_calls_gives_the_time_of_one(monkeypatch) -> None:
    monkeypatch.setattr(replays, "clock_for", lambda device: CountingClock())
    monkeypatch.setattr(replays, "CudaGraphs", Repeats)
    recorded: list[int] = []

    def call() -> None:
        CountingClock.calls += 1
        recorded.append(1)

    assert device_seconds(call, GPU) == pytest.approx(2.5e-4)
    # Once aside, once timed; then 2 ms of it in a graph, replayed once and five times more.
    assert len(recorded) == 2 + 8 * 6


def test_kernels_and_products_have_the_gpus_own_time(monkeypatch) -> None:
    subject = subject_of(Layer())
    subject.device = GPU
    asked: list[Any] = []

    def seconds(call: Callable[[], object], device: torch.device) -> float:
        asked.append(call())
        return 1.0

    monkeypatch.setattr(operations, "device_seconds", seconds)
    found = look_into(subject, repeats=1)
    # x W, and the gradients of both; those of the factors are of two sizes.
    assert found.seconds == {"products": 3.0}
    assert len(asked) == 3


def test_products_of_one_size_are_timed_once(monkeypatch) -> None:
    class Twice(Layer):
        def forward(self, x_btd: Tensor) -> Tensor:
            return (x_btd @ self.weight) @ self.weight

    subject = subject_of(Twice())
    subject.device = GPU
    asked: list[int] = []
    monkeypatch.setattr(operations, "device_seconds", lambda *given: asked.append(1) or 0.5)
    assert look_into(subject, repeats=1).seconds == {"products": 3.0}
    assert len(asked) < 6


@pytest.mark.parametrize(
    ("widths", "dtype", "slow"),
    [
        ((16, 24), torch.bfloat16, {}),
        ((16, 12), torch.float32, {}),
        # y, the gradient of x and that of W, each named by its first number at fault.
        (
            (16, 12),
            torch.bfloat16,
            {
                "[6, 16] times [16, 12] in bfloat16": 12,
                "[6, 12] times [12, 16] in bfloat16": 12,
                "[12, 6] times [6, 16] in bfloat16": 12,
            },
        ),
        (
            (10, 16),
            torch.float16,
            {
                "[6, 10] times [10, 16] in float16": 10,
                "[6, 16] times [16, 10] in float16": 10,
                "[16, 6] times [6, 10] in float16": 10,
            },
        ),
    ],
    ids=["aligned", "fp32", "columns", "rows"],
)
def test_products_on_slow_kernels_are_named(monkeypatch, widths, dtype, slow) -> None:
    inputs, outputs = widths
    layer = nn.Linear(inputs, outputs, bias=False, dtype=dtype)
    subject = LayerSubject("own", layer, torch.ones(2, 3, inputs, dtype=dtype), "cuda", "fp32")
    assert look_into(subject, repeats=1).slow == {}  # a CPU has no such kernels
    subject.device = GPU
    monkeypatch.setattr(operations, "device_seconds", lambda *given: 0.5)
    found = look_into(subject, repeats=1).slow
    assert {one.factors: one.size for one in found} == slow
    assert set(found.values()) <= {0.5}


def test_a_step_is_replayed_as_in_training(text_file: Path, monkeypatch) -> None:
    wanted: list[Any] = []
    monkeypatch.setattr(
        subjects, "uses_graph", lambda config, device: wanted.append(config) or True
    )
    config = compose_config(
        [
            *("mode=bench", "model=e61", "model.dim=128", "model.depth=1", "bench.backends=[cpu]"),
            *("bench.batch_size=2", "bench.chunk_size=8", f"data.path={text_file}"),
            "data.val_window=16",
        ]
    )
    chosen, _ = entries(benched_models(config), config.bench.backends, "cpu")
    with ExitStack() as stack:
        (subject,), _ = step_subjects(config, chosen, CPU, stack)
        assert (wanted[0].train.graph, wanted[0].kernels.backend) == ("auto", "cpu")
        marks: list[str] = []
        before = [weight.clone() for weight in subject.weights()]
        subject.iterate(marks.append)
        assert tuple(marks) == subject.parts == ("data", "passes", "optimiser")
        pairs = zip(before, subject.weights(), strict=True)
        assert not any(torch.equal(old, new) for old, new in pairs)
        subject.loss_and_gradients()


def test_the_tables_say_what_was_replayed(capsys, tmp_path: Path) -> None:
    def spread(median: float) -> dict[str, float]:
        return {"median": median, "low": median, "high": median}

    row = {"backend": "cuda", "params": 1, "total": spread(3e-3), "ratio": spread(1.0)}
    row |= {"level": "step", "rounds": [{}], "tok_s": 1.0, "kernels": {}, "products": 1e-3}
    row |= {"saved_bytes": 0, "peak_bytes": 0, "path": None, "slow_path": False}
    fast = row | {"name": "fast", "replayed": True}
    fast["seconds"] = {"data": spread(1e-3), "passes": spread(2e-3), "optimiser": spread(0.0)}
    slow = row | {"name": "slow", "replayed": False, "backend": "reference"}
    slow["seconds"] = {part: spread(1e-3) for part in ("data", "forward", "backward")}
    slow["seconds"]["optimiser"] = spread(0.0)
    result = {"rows": [fast, slow], "notes": []}
    slow["slow_products"] = [
        {"factors": f"[9, {size}] times [{size}, 8] in bfloat16", "size": size, "seconds": 2e-3}
        for size in (1001, 1002, 1003, 1004, 1005)
    ]
    result["rates"] = {"multiplies": None, "tanhs": None, "copies": {}}
    result["environment"] = {"device_name": "a GPU", "threads": 1}
    print_bench(table_console(), result, tmp_path)
    printed = capsys.readouterr().out
    (titles,) = [line for line in printed.splitlines() if "both passes" in line]
    order = ["data", "forward", "backward", "both passes", "optimizer"]
    assert [titles.index(title) for title in order] == sorted(map(titles.index, order))
    assert "replayed as CUDA graphs, as in training" in printed
    assert "launched by Python one operation at a time: slow reference" in printed
    words = " ".join(printed.split())
    first = "slow reference: slow kernel for a product, 2.00 ms: [9, 1001] times [1001, 8]"
    assert f"{first} in bfloat16; 1,001 is no multiple of 8" in words
    assert words.count("is no multiple of 8") == 3
    assert "slow reference: slow kernels for 2 more products" in words
    assert printed.count("2.00") >= 2  # both passes of each, over the products
