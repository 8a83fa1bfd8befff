"""``mode=bench``: what is timed, in which order, and that bytes and operations are counted right.

No time is compared with another: the numbers of a clock are given.
"""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.bench import benchmark, rounds
from elman.bench.build import layer_subjects
from elman.bench.clock import WallClock
from elman.bench.entries import benched_models, entries
from elman.bench.floors import Work, floor_seconds, work_of
from elman.bench.memory import peak_bytes, saved_bytes
from elman.bench.operations import look_into
from elman.bench.peers import Sizes, build_peer
from elman.bench.rates import MachineRates, measure_rates
from elman.bench.rounds import Spread, ratios, time_rounds, totals
from elman.bench.subjects import LayerSubject, Subject
from elman.cli.main import main
from elman.config.compose import compose_config
from elman.data.text import open_data
from elman.models.build import build_model
from elman.modes import bench as bench_mode
from elman.ops import cross_entropy
from elman.ops.channel import plan as channel_plan
from elman.ops.common.slices import row_blocks
from elman.ops.matrix_state import plan as matrix_plan
from elman.report.tables.bench import print_bench, print_bench_sweep
from elman.runs.prepared import PreparedRun
from elman.sweeps.row import SweepRow
from elman.training.assembly import state_of
from elman.training.loop import take_step
from elman.training.optim.optimizers import TrainingOptimizer

CPU = torch.device("cpu")
SMALL = ("bench.batch_size=2", "bench.chunk_size=8", "bench.rounds=2", "data.val_window=16")
SIZES = Sizes(dim=16, heads=2, width=4, batch=2, steps=8)


class Stub(Subject):
    """A subject whose parts take what it is told."""

    level = "layer"
    parts = ("forward", "backward")

    def __init__(self, name: str, log: list[str], forward: float, backward: float) -> None:
        super().__init__(name, "none", CPU)
        self._log, self._seconds = log, {"forward": forward, "backward": backward}

    def iterate(self, mark: Any) -> None:
        self._log.append(self.name)
        for part, seconds in self._seconds.items():
            mark((part, seconds))

    def loss_and_gradients(self) -> None:
        raise NotImplementedError

    def weights(self) -> list[Tensor]:
        return []


class GivenClock:
    """A clock that believes what it is told."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    def start(self) -> None:
        pass

    def mark(self, part: Any) -> None:
        name, seconds = part
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def read(self) -> dict[str, float]:
        return self._seconds


# ------------------------------------------------------------------------------- clock and rounds


def test_the_wall_clock_adds_up_parts_of_the_same_name() -> None:
    clock = WallClock()
    clock.start()
    for part in ("forward", "backward", "forward"):
        clock.mark(part)
    seconds = clock.read()
    assert list(seconds) == ["forward", "backward"]
    assert all(value >= 0 for value in seconds.values())
    assert clock.read() == {}


def test_rounds_are_interleaved_and_turn_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "clock_for", lambda device: GivenClock())
    log: list[str] = []
    # Long enough that a measurement is one iteration.
    subjects = [Stub("a", log, 1.0, 2.0), Stub("b", log, 2.0, 4.0), Stub("c", log, 1.0, 1.0)]
    seen: list[tuple[int, int]] = []
    timed = time_rounds(subjects, 3, lambda done, total: seen.append((done, total)))
    assert log == list("aabbcc") + list("abc") + list("cba") + list("abc")
    assert seen == [(done, 9) for done in range(1, 10)]
    assert timed[1] == [{"forward": 2.0, "backward": 4.0}] * 3
    assert totals(timed[1], ("forward", "backward")) == [6.0] * 3


def test_short_iterations_are_repeated_within_a_measurement(monkeypatch) -> None:
    monkeypatch.setattr(rounds, "clock_for", lambda device: GivenClock())
    log: list[str] = []
    timed = time_rounds([Stub("a", log, 0.01, 0.02)], 1, lambda done, total: None)
    assert len(log) == 2 + 5
    assert timed[0][0] == {"forward": pytest.approx(0.01), "backward": pytest.approx(0.02)}


def test_ratios_are_taken_round_by_round() -> None:
    """A slow minute doubles both, and the ratio stays."""
    assert ratios([2.0, 4.0, 2.2], [1.0, 2.0, 1.0]) == Spread(2.0, 2.0, 2.2)


# ------------------------------------------------------------------------------- memory


class _Square(nn.Module):
    """Saves its product's input, and the square's."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4))

    def forward(self, x_btd: Tensor) -> Tensor:
        return (x_btd @ self.weight.T).square()


def test_saved_bytes_are_those_of_the_storages_without_the_weights() -> None:
    subject = LayerSubject("s", _Square(), torch.randn(2, 3, 4), "none", "fp32")
    assert saved_bytes(subject) == 4 * (2 * 3 * 4 + 2 * 3 * 6)
    # The product and its square at once, and with them the gradients of the way back.
    assert peak_bytes(subject) >= 4 * 3 * (2 * 3 * 6)


# ------------------------------------------------------------------------------- floors


class _Rates:
    multiplies: float | None = 1e9
    tanhs: float | None = 1e8

    def bandwidth(self, moved: float) -> float:
        return 1e10


def test_a_floor_is_the_larger_of_moving_and_computing() -> None:
    assert floor_seconds(Work(1e10, 1.0, 0.0), _Rates()) == pytest.approx(1.0)
    assert floor_seconds(Work(1.0, 3e9, 1e8), _Rates()) == pytest.approx(4.0)
    assert floor_seconds(Work(), _Rates()) == 0.0
    unknown = _Rates()
    unknown.multiplies = unknown.tanhs = None
    assert floor_seconds(Work(1e10, 3e9, 1e8), unknown) == pytest.approx(1.0)


def matrix_work(operator: str, **options: Any) -> Work:
    given = {"cell": "delta", "heads": 3, "rows": 4, "columns": 5, "decay": "sigmoid"} | options
    blocks = row_blocks({"k": 15, "q": 15, "v": 12, "decay": 3})
    if given["decay"] == "none":
        blocks.pop("decay")
    plan = matrix_plan.Plan(roles=tuple(blocks.items()), **given)
    return work_of(operator, [plan.text], [torch.empty(2, 7, 45), torch.empty(3)])


def test_work_of_a_matrix_kernel() -> None:
    """S' = tanh(c S + w k^T), r = S k, y = S' q: four products and one tanh per element."""
    elements = 2 * 7 * 3 * 4 * 5
    forward = matrix_work("matrix_state")
    assert forward == Work(4.0 * (2 * 7 * 45 + 3), 4 * elements, elements)
    assert matrix_work("matrix_state", decay="none").multiplies == 3 * elements
    assert matrix_work("matrix_state", nonlinearity="linear").tanhs == 0
    backward = matrix_work("matrix_state_backward")
    assert backward.multiplies > 2 * forward.multiplies
    assert backward.tanhs == forward.tanhs


def test_work_of_a_channel_kernel() -> None:
    places = row_blocks({"retain": 5, "candidate": 5})
    plan = channel_plan.Plan("e61", tuple(places.items()), self_gate=True)
    tensors = [torch.empty(2, 7, 10), torch.empty(2, 5)]
    work = work_of("channel", [plan.text], tensors)
    assert work.moved == 4 * (2 * 7 * 10 + 2 * 5)
    assert work.tanhs == 2 * (2 * 7 * 5)
    assert work_of("channel_backward", [plan.text], tensors).multiplies == 3 * work.multiplies


def test_work_of_an_unknown_kernel_is_its_bytes() -> None:
    assert work_of("new_engine", ["plan"], [torch.empty(3)]) == Work(12.0)


def test_the_machine_has_rates() -> None:
    found = measure_rates(CPU)
    assert found.multiplies is not None
    assert found.tanhs is not None
    assert found.multiplies > found.tanhs > 1e6
    assert found.bandwidth(3e6) > 1e8
    assert list(found.copies) == [2**22 if 3e6 > 2**21.5 else 2**21]


# ------------------------------------------------------------------------------- operations


def subject_of(*overrides: str) -> LayerSubject:
    config = compose_config(["mode=bench", *SMALL, *overrides])
    models = benched_models(config)
    chosen, _ = entries(models, config.bench.backends, "cpu")
    (subject,), _ = layer_subjects(config, chosen, CPU)
    assert isinstance(subject, LayerSubject)
    return subject


def test_kernels_and_products_are_found_inside_a_layer() -> None:
    subject = subject_of(
        "model=e61", "model.dim=128", "model.expansion=1.0", "bench.backends=[cpu]"
    )
    found = look_into(subject)
    assert found.calls == 2
    assert set(found.seconds) == {"kernel forward", "kernel backward", "products"}
    sequence = 4 * 2 * 8 * 128
    # Two projections in, one sequence out; and their gradients on the way back.
    assert 3 * sequence < found.work["kernel forward"].moved < 4 * sequence
    assert found.work["kernel backward"].moved > 5 * sequence


def test_the_reference_has_no_kernels() -> None:
    found = look_into(subject_of("model=e61", "model.dim=128", "bench.backends=[reference]"))
    assert found.calls == 0
    assert list(found.seconds) == ["products"]


def test_an_iteration_leaves_no_gradients_and_changes_the_weights() -> None:
    subject = subject_of("model=e61", "model.dim=128")
    before = [weight.clone() for weight in subject.weights()]
    parts: list[str] = []
    subject.iterate(parts.append)
    assert parts == ["forward", "backward", "optimiser"]
    assert all(weight.grad is None for weight in subject.weights())
    pairs = zip(before, subject.weights(), strict=True)
    assert not all(torch.equal(old, new) for old, new in pairs)


def test_a_step_marks_its_parts(text_file: Path) -> None:
    config = compose_config(["model=e61", "model.dim=128", "model.depth=1", "train.grad_accum=2"])
    model = build_model(config.model)
    marks: list[str] = []
    with open_data(config.data.model_copy(update={"path": str(text_file)}), 96, print) as data:
        optimizer = TrainingOptimizer(config.optim, model)
        state = state_of(config, data, model, optimizer, CPU, graph=False)
        state.mark = marks.append
        take_step(state, 0.5)
        state.batches.close()
    assert marks == ["data", "forward", "backward"] * 2 + ["optimiser"]


# ------------------------------------------------------------------------------- what is timed


def test_models_have_their_own_sizes_or_the_first_ones() -> None:
    common = ["mode=bench", "model=e61", "model.dim=256", "model.depth=3"]
    named = compose_config([*common, "bench.models=[e34,e68]"])
    assert [(m.name, m.dim, m.depth) for m in benched_models(named)] == [
        ("e61", 256, 3),
        ("e34", 768, 20),
        ("e68", 640, 20),
    ]
    same = compose_config([*common, "bench.models=[e34]", "bench.same_size=true"])
    assert [(m.name, m.dim, m.depth) for m in benched_models(same)] == [
        ("e61", 256, 3),
        ("e34", 256, 3),
    ]


def test_every_model_is_timed_on_every_backend_that_it_has_once() -> None:
    config = compose_config(["mode=bench", "model=e61", "bench.models=[mamba2]"])
    found, notes = entries(benched_models(config), ["reference", "auto", "cpu"], "cpu")
    assert [(one.model.name, one.backend) for one in found] == [
        ("e61", "reference"),
        ("e61", "cpu"),
        ("mamba2", "reference"),
    ]
    slow, left_out = notes
    assert slow.startswith("slow path: plain PyTorch runs cell mamba2 (the package's kernels")
    assert left_out.startswith(
        "mamba2 left out: kernels.backend=cpu: cell mamba2 has only reference"
    )


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["bench.models=[e43]"], "bench.models: model=e43"),
        (["bench.models=[e1,e34]", "bench.same_size=true", "model.dim=0"], "model.dim=0"),
        (["bench.peers=[pytorch]"], "bench.peers=pytorch: expected one of mamba2_transformers"),
        (["bench.backends=[]"], "bench.backends=[]: an empty list"),
        (["bench.rounds=0"], "bench.rounds=0: must be at least 1"),
        (["bench.shapes=32"], "bench.shapes=32: expected rows times bytes, as in"),
        (["bench.shapes=[32]"], "bench.shapes=32: expected rows times bytes, as in"),
        (["bench.shapes=[2x8,0x8]"], "bench.shapes=0x8: expected rows times bytes, as in"),
        (["kernels.backend=cpu"], "kernels.backend: read only with"),
        (["train.batch_size=2"], "train.batch_size: read only with"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_commands_are_one_line_and_leave_nothing(
    tmp_path: Path, capsys, monkeypatch, command: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["mode=bench", *command]) == ExitStatus.USER_ERROR
    errors = capsys.readouterr().err
    assert errors.startswith(f"elman: error: {message}")
    assert errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------- peers


@pytest.mark.parametrize("name", ["torch_lstm", "torch_gru", "torch_rnn"])
def test_torchs_own_layers_are_peers(name: Any) -> None:
    peer = build_peer(name, SIZES, CPU)
    assert peer.path == "torch.nn"
    assert peer.module(torch.randn(2, 8, 16))[0].shape == (2, 8, 16)


@pytest.fixture
def fake_fla(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Put a stand-in where flash-linear-attention's plain form would be imported from."""
    calls: list[tuple[int, ...]] = []

    def rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, None]:
        calls.append(tuple(q.shape))
        assert bool((g <= 0).all())
        assert bool(((beta >= 0) & (beta <= 1)).all())
        return v * (q * k).sum(-1, keepdim=True) * (g.exp() * beta).unsqueeze(-1), None

    module = types.ModuleType("fla.ops.gated_delta_rule.naive")
    module.naive_chunk_gated_delta_rule = rule  # type: ignore[attr-defined]
    for name in ("fla", "fla.ops", "fla.ops.gated_delta_rule"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "fla.ops.gated_delta_rule.naive", module)
    return calls


@pytest.mark.parametrize(
    ("name", "level"), [("gated_delta_fla", "layer"), ("gated_delta_fla_op", "op")]
)
def test_the_gated_delta_rule_of_fla_is_called_with_the_models_heads(
    fake_fla: list[Any], name: Any, level: str
) -> None:
    peer = build_peer(name, SIZES, CPU)
    out = peer.module(torch.randn(2, 8, 16))
    out.sum().backward()
    assert (peer.path, peer.level) == ("naive chunk", level)
    assert fake_fla == [(2, 8, 2, 4)]
    assert out.shape == ((2, 8, 16) if level == "layer" else (2, 8, 2, 4))
    assert all(p.grad is not None for p in peer.module.parameters())


def test_a_peer_without_its_package_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.models.mamba2", None)
    with pytest.raises(UserError, match=r"mamba2_transformers needs .*; pip install transformers"):
        build_peer("mamba2_transformers", SIZES, CPU)


# ------------------------------------------------------------------------------- the mode


@pytest.fixture
def given_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring the machine takes a second."""
    fake = MachineRates(CPU, 1e10, 1e9, {2**20: 1e10})
    monkeypatch.setattr(fake, "bandwidth", lambda moved: 1e10)
    monkeypatch.setattr(benchmark, "measure_rates", lambda device: fake)


def run_mode(folder: Path, *overrides: str) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    config = compose_config(["mode=bench", "model.dim=128", *SMALL, *overrides])
    assert bench_mode.run(PreparedRun(config, folder)) is ExitStatus.OK
    result: dict[str, Any] = json.loads((folder / "bench.json").read_text())
    return result


def test_layers_of_models_backends_and_peers_in_one_run(
    tmp_path: Path, capsys, monkeypatch, given_rates
) -> None:
    monkeypatch.setitem(sys.modules, "transformers.models.mamba2", None)
    result = run_mode(
        tmp_path / "run",
        "model=e61",
        "bench.models=[e34]",
        "bench.same_size=true",
        "bench.backends=[reference,cpu]",
        "bench.peers=[torch_rnn,mamba2_transformers]",
    )
    rows = result["rows"]
    assert [(row["name"], row["backend"]) for row in rows] == [
        ("e61", "reference"),
        ("e61", "cpu"),
        ("e34", "reference"),
        ("e34", "cpu"),
        ("torch_rnn", "torch.nn"),
    ]
    kernel = rows[1]
    assert len(kernel["rounds"]) == 2
    assert kernel["ratio"]["low"] <= kernel["ratio"]["median"] <= kernel["ratio"]["high"]
    assert rows[0]["ratio"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    assert set(kernel["seconds"]) == {"forward", "backward", "optimiser"}
    assert kernel["kernels"]["kernel forward"]["floor"] > 0
    assert 0 < kernel["saved_bytes"] < rows[0]["saved_bytes"]
    assert kernel["peak_bytes"] > 0
    assert kernel["tok_s"] == pytest.approx(16 / kernel["total"]["median"])
    assert result["settings"]["batch_size"] == 2
    printed = capsys.readouterr().out
    assert "one layer: milliseconds, medians of 2 rounds" in printed
    assert "left out: bench.peers: mamba2_transformers needs transformers" in printed
    assert "floors from what was measured here" in printed


def test_a_model_without_kernels_is_said_and_marked(tmp_path: Path, capsys, given_rates) -> None:
    run_mode(tmp_path / "run", "model=e61", "bench.models=[mamba2]", "bench.level=layer")
    output = capsys.readouterr().out
    assert "slow path: plain PyTorch runs cell mamba2 (the package's kernels" in output
    marked = [line for line in output.splitlines() if "reference, the slow path" in line]
    assert len(marked) == 1
    assert "mamba2" in marked[0]


def test_a_recurrence_alone_is_set_against_the_kernels(
    tmp_path: Path, capsys, fake_fla: list[Any], given_rates
) -> None:
    result = run_mode(
        tmp_path / "run", "model=e61", "bench.backends=cpu", "bench.peers=gated_delta_fla_op"
    )
    kernel, peer = result["rows"]
    seconds = sum(one["seconds"] for one in kernel["kernels"].values())
    printed = capsys.readouterr().out
    assert peer["level"] == "op"
    times = peer["total"]["median"] / seconds
    assert f"gated_delta_fla_op: {times:.1f} times the kernels of e61" in printed
    assert fake_fla[0] == (2, 8, 2, 64)


def test_a_training_step_is_timed_with_its_data(
    tmp_path: Path, capsys, text_file: Path, given_rates
) -> None:
    result = run_mode(
        tmp_path / "run",
        "model=e61",
        "model.depth=1",
        "bench.level=both",
        f"data.path={text_file}",
    )
    layer, step = result["rows"]
    assert (layer["level"], step["level"]) == ("layer", "step")
    assert list(step["seconds"]) == ["data", "forward", "backward", "optimiser"]
    assert step["params"] > layer["params"]
    assert step["kernel_calls"] == 6  # the recurrence and two norms, there and back
    assert (layer["loss_chunk"], step["loss_chunk"]) == (None, None)
    said = capsys.readouterr().out
    assert "one step: milliseconds" in said
    assert "cross entropy over 256 tokens from whole logits" in said


def test_a_step_with_its_loss_in_chunks_says_so(
    tmp_path: Path, capsys, text_file: Path, given_rates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cross_entropy, "_BYTES", 255)
    monkeypatch.setattr(cross_entropy, "MOST_LOGITS", 256 * 4)
    settings = ("model=e61", "model.depth=1", "bench.level=step", f"data.path={text_file}")
    result = run_mode(tmp_path / "run", *settings)
    assert [row["loss_chunk"] for row in result["rows"]] == [4]
    assert "256 tokens in chunks of 4 of 16 positions" in " ".join(capsys.readouterr().out.split())


def test_shapes_are_timed_one_after_another_and_compared_by_their_rates(
    tmp_path: Path, capsys, given_rates
) -> None:
    result = run_mode(tmp_path / "run", "model=e61", "bench.shapes=[4x4,1x16]")
    sizes = [(row["batch_size"], row["chunk_size"]) for row in result["rows"]]
    assert sizes == [(4, 4), (1, 16)]
    assert [row["tok_s"] * row["total"]["median"] for row in result["rows"]] == [
        pytest.approx(16)
    ] * 2
    printed = capsys.readouterr().out
    assert "one layer: tok/s by rows x bytes, medians of 2 rounds" in printed
    assert all(f"{row['tok_s']:,.0f}" in printed for row in result["rows"])


def test_a_shape_that_does_not_fit_into_memory_is_left_out_with_a_note(
    tmp_path: Path, capsys, monkeypatch, given_rates
) -> None:
    built = benchmark.layer_subjects

    def of_little_memory(config: Any, *given: Any) -> Any:
        if config.bench.chunk_size > 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return built(config, *given)

    monkeypatch.setattr(benchmark, "layer_subjects", of_little_memory)
    result = run_mode(tmp_path / "run", "model=e61", "bench.shapes=[2x8,1x16]")
    assert [row["chunk_size"] for row in result["rows"]] == [8]
    assert "one layer of 1x16 left out: too little memory for it" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"bench\.shapes=1x16: none fits into memory"):
        run_mode(tmp_path / "none", "model=e61", "bench.shapes=[1x16]")


@pytest.mark.parametrize("level", ["layer", "step"])
@pytest.mark.parametrize("rows", [999999, 10**30])
def test_a_shape_that_would_get_the_process_killed_is_left_out_before_it_is_built(
    tmp_path: Path, capsys, given_rates, level: str, rows: int
) -> None:
    shapes = f"bench.shapes=[2x8,{rows}x9999]"
    result = run_mode(tmp_path / "run", "model=e61", f"bench.level={level}", shapes)
    assert [row["chunk_size"] for row in result["rows"]] == [8]
    assert any(
        f"one {level} of {rows}x9999 left out: it needs at least" in note
        for note in result["notes"]
    )
    with pytest.raises(UserError, match=rf"bench\.batch_size={rows}, .*are free; lower one of"):
        run_mode(
            tmp_path / "none",
            "model=e61",
            f"bench.level={level}",
            f"bench.batch_size={rows}",
            "bench.chunk_size=9999",
        )


def test_nothing_to_time_is_said(tmp_path: Path, given_rates) -> None:
    with pytest.raises(
        UserError, match=r"bench.backends=cpu: mamba2 left out: .* has only reference"
    ):
        run_mode(tmp_path / "run", "model=mamba2", "bench.backends=[cpu]")


def test_rates_of_a_thousand_and_more_are_printed(tmp_path: Path, capsys, monkeypatch) -> None:
    """A GPU copies more than a thousand GB a second, which print with a comma."""
    fake = MachineRates(CPU, 1e10, 1e9, {2**20: 4e11, 2**30: 1.183e12})
    monkeypatch.setattr(fake, "bandwidth", lambda moved: 1e10)
    monkeypatch.setattr(benchmark, "measure_rates", lambda device: fake)
    run_mode(tmp_path / "run", "model=e61")
    assert "copies 400 to 1,183 GB/s" in capsys.readouterr().out


def test_a_sweep_ends_in_one_table(tmp_path: Path, capsys, given_rates) -> None:
    result = run_mode(tmp_path / "run", "model=e61")
    assert "products -" not in capsys.readouterr().out
    hidden = [row | {"products": 0.0} for row in result["rows"]]
    print_bench(Console(), result | {"rows": hidden}, tmp_path)
    shown = capsys.readouterr().out
    assert "0.00 ms" not in shown
    assert "products -: torch does not say" in shown
    rows = [
        SweepRow(1, ["bench.batch_size=1"], "ok", result),
        SweepRow(2, ["bench.batch_size=9"], "crash", None),
    ]
    config = compose_config(["mode=bench"])
    print_bench_sweep(rows, [config, config], tmp_path)
    printed = capsys.readouterr().out
    assert "bench.batch_size=1" in printed
    assert "crash" in printed
    assert f"sweep folder: {tmp_path}" in printed
