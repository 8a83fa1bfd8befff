"""The replayed training pass: the same bits as the eager one, and what cannot be replayed.

A GPU is played by :class:`Tape`. It keeps the operations of a recorded pass and does them again on
the same tensors, as a CUDA graph does: without Python between them, in the same memory, drawing
from the generator anew. Like a capture it leaves nothing computed behind, and refuses to wait for a
number.
"""

from __future__ import annotations

import inspect
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus
from elman.config.compose import compose_config
from elman.config.run_config import RunConfig
from elman.data.text import open_data
from elman.kernels.graphs import CudaGraphs
from elman.models.build import build_model
from elman.models.cells import registry
from elman.models.language_model import LanguageModel
from elman.modes import train as train_mode
from elman.training import cuda_graph
from elman.training.agreement import Agreement
from elman.training.assembly import state_of
from elman.training.checkpoints.store import Checkpoint, find_checkpoint
from elman.training.held_out import HeldOut
from elman.training.loop import take_step, update
from elman.training.moments import Moment
from elman.training.optim.optimizers import TrainingOptimizer
from elman.training.preparation import prepare_step, release_step
from elman.training.training_state import TrainingState
from tests.shipped import shipped
from tests.training.stopping import stop_after
from tests.training.tapes import NOT_PERMITTED, Tapes, play

CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def tapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let train.graph=true mean tapes, on the CPU."""

    def wanted(config: Any, device: torch.device) -> bool:
        return config.train.graph is True

    play(monkeypatch)
    monkeypatch.setattr(train_mode, "uses_graph", wanted)


def same(one: Any, other: Any) -> bool:
    """Whether two runs have the same losses and weights to the bit."""
    left, right = one.weights(), other.weights()
    assert left.keys() == right.keys()
    equal = all(torch.equal(left[name], right[name]) for name in left)
    return equal and one.records("step") == other.records("step")


# ---- the same bits as an eager run

E1 = ("model=e1", "model.dim=128", "model.depth=1")
SETTINGS: dict[str, tuple[str, ...]] = {
    "muon_tiny": (),  # of the default model
    "adamw": ("optim=adamw",),
    "muon": ("optim=muon",),
    "schedulefree": ("optim=schedulefree",),
    "legacy": ("optim=legacy",),
    "accumulation": ("train.grad_accum=2",),
    "tbptt": ("train.tbptt=true", "model.use_conv=true"),
    "tbptt, accumulation": ("train.tbptt=true", "train.grad_accum=2"),
    "dropout": ("model.dropout=0.3",),
    "dropout, tbptt, muon": ("model.dropout=0.3", "train.tbptt=true", "optim=muon"),
    "bf16": ("train.precision=bf16", "train.tbptt=true"),
    "no clipping": ("train.grad_clip=0",),
}


@pytest.mark.parametrize("overrides", SETTINGS.values(), ids=SETTINGS)
def test_a_replayed_run_is_bitwise_the_eager_one(train, overrides: tuple[str, ...]) -> None:
    eager = train("train.graph=false", *overrides, folder="eager")
    replayed = train("train.graph=true", *overrides, folder="replayed")
    assert replayed.status == ExitStatus.OK
    assert (eager.result["graph"], replayed.result["graph"]) == (False, True)
    assert same(eager, replayed)
    assert replayed.result["val_bpb"] == eager.result["val_bpb"]
    assert replayed.result["reload_difference_bpb"] == eager.result["reload_difference_bpb"]


# ---- every cell

# Streams that end after a few chunks, states in the middle of a step: every kind of micro-batch.
SMALL = (
    "train.batch_size=2",
    "train.chunk_size=4",
    "train.tbptt=true",
    "train.grad_accum=2",
    "data.val_window=4",
    "data.val_bytes=5",
    # No CPU multiplies the bf16 matrices of Muon quickly; SETTINGS have every optimizer.
    "optim=adamw",
    "optim.warmup_steps=1",
)
CELLS = {listed.config.cell: listed.config for listed in reversed(shipped()) if listed.config}


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> RunConfig:
    """Return the configuration of a run with two short streams."""
    text = tmp_path_factory.mktemp("short") / "text.txt"
    text.write_bytes(b"the quick brown fox jumps over it")
    return compose_config([*SMALL, f"data.path={text}"])


def changed(config: RunConfig, section: str, **values: Any) -> RunConfig:
    """Return a configuration with other values in a section."""
    own = getattr(config, section).model_copy(update=values)
    return config.model_copy(update={section: own})


@contextmanager
def started(
    config: RunConfig, change: Callable[[LanguageModel], object] = lambda model: None
) -> Iterator[TrainingState]:
    """Yield the training state of a model, changed before the optimizer sees it."""
    with open_data(config.data, config.train.chunk_size, print) as data:
        torch.manual_seed(0)
        model = build_model(config.model, backend=config.kernels.backend)
        change(model)
        optimizer, graph = TrainingOptimizer(config.optim, model), config.train.graph is True
        made = state_of(config, data, model, optimizer, CPU, graph=graph)
        try:
            yield made
        finally:
            made.batches.close()


def trained(config: RunConfig, graph: bool, steps: int = 4) -> list[Tensor]:
    """Return the losses, the gradients' norms and then the weights of a few steps."""
    with started(changed(config, "train", graph=graph)) as made:
        prepare_step(made)
        taken = [take_step(made, 0.1) for _ in range(steps)]
        numbers = [number for step in taken for number in (step.loss, step.grad_norm)]
        return [*numbers, *(w.detach().clone() for w in made.model.state_dict().values())]


def of_cell(config: RunConfig, cell: str, **options: Any) -> RunConfig:
    """Return a configuration with one layer of a cell."""
    sizes = {"dim": 128, "depth": 1, "expected_params": None}
    model = CELLS[cell].model_copy(update={**sizes, "options": CELLS[cell].options | options})
    return config.model_copy(update={"model": model})


@pytest.mark.parametrize("cell", registry.cells())
def test_every_cell_can_be_replayed(small: RunConfig, cell: str) -> None:
    config = of_cell(small, cell, **({"context": 5} if cell == "llama" else {}))
    wanted, found = trained(config, graph=False), trained(config, graph=True)
    assert all(map(torch.equal, found, wanted))
    assert all(bool(tensor.isfinite().all()) for tensor in wanted)


# ---- what happens between the passes


def test_a_run_that_is_cut_goes_on_bitwise_the_same_replayed_or_not(
    train, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = ["train.steps=9", "train.tbptt=true", "train.grad_accum=2", "model.dropout=0.3"]
    whole = train(*overrides, "train.graph=false", folder="whole")

    with monkeypatch.context() as patched:
        stop_after(patched, 4)
        half = train(*overrides, "train.graph=true", folder="half")
    assert "stopped by the test" in half.result["error"]
    shutil.copytree(half.folder, half.folder.with_name("other"), symlinks=True)
    for folder, graph in (("half", "true"), ("other", "false")):
        place = half.folder.with_name(folder)
        resumed = train(
            "train.steps=9",
            *overrides[1:],
            f"train.resume={place}",
            f"train.graph={graph}",
            folder=folder,
        )
        assert resumed.result["graph"] is (graph == "true")
        assert resumed.records("step") == whole.records("step")
        assert resumed.result["val_bpb"] == whole.result["val_bpb"]


def test_steps_run_no_python_of_the_model(
    small: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(*args: object) -> None:
        raise AssertionError("a replayed pass called the model")

    with started(changed(small, "train", graph=True)) as made:
        prepare_step(made)
        monkeypatch.setattr(LanguageModel, "forward", forward)
        losses = [float(take_step(made, 0.1).loss) for _ in range(3)]
    assert len(set(losses)) == 3


def test_a_schedule_free_update_is_replayed_and_keeps_what_is_not_finite_out(
    small: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(*args: object) -> None:
        raise AssertionError("a replayed update called the optimizer")

    given = changed(small, "train", graph=True)
    optim = compose_config(["optim=schedulefree", "optim.warmup_steps=1"]).optim
    with started(given.model_copy(update={"optim": optim})) as made:
        prepare_step(made)
        monkeypatch.setattr(TrainingOptimizer, "step", step)
        seen = []
        for _ in range(3):
            take_step(made, 0.1)
            seen.append([w.clone() for w in made.model.state_dict().values()])
        assert not any(map(torch.equal, seen[0], seen[1]))
        made.model.embedding.data[:] *= 1e30  # the square of a gradient leaves fp32
        before = [w.clone() for w in made.model.state_dict().values()]
        moments = [m.clone() for m in made.optimizer.moments()]
        take_step(made, 0.1)
        assert made.blocked(drain=True)
        assert all(map(torch.equal, before, made.model.state_dict().values()))
        assert all(map(torch.equal, moments, made.optimizer.moments()))
        saved = made.optimizer.state_dict()["optimizer"]["param_groups"]
    assert [group["k"] for group in saved] == [3] * len(saved)


def test_the_first_pass_leaves_no_trace(small: RunConfig) -> None:
    config = changed(small, "model", options=small.model.options | {"dropout": 0.5})
    with started(changed(config, "train", graph=True)) as made:
        weights = [w.clone() for w in made.model.state_dict().values()]
        generator, batches = torch.get_rng_state(), made.batches.state_dict()
        prepare_step(made)
        assert torch.equal(torch.get_rng_state(), generator)
        assert made.batches.state_dict() == batches
        assert all(map(torch.equal, made.model.state_dict().values(), weights))
        assert made.state_dict()["states"] is None


def test_saved_states_stay_what_they_were(small: RunConfig) -> None:
    with started(changed(small, "train", graph=True)) as made:
        prepare_step(made)
        take_step(made, 0.1)
        saved = made.state_dict()["states"]
        before = [part.clone() for state in saved for part in state.values()]
        take_step(made, 0.1)
        after = [part for state in saved for part in state.values()]
        now = [part for state in made.state_dict()["states"] for part in state.values()]
    assert all(map(torch.equal, before, after))
    assert not any(map(torch.equal, before, now))


def test_a_parameter_that_nothing_reaches_has_no_gradient(small: RunConfig) -> None:
    def change(model: LanguageModel) -> None:
        model.register_parameter("idle", nn.Parameter(torch.ones(3)))
        model.final_norm.requires_grad_(False)

    with started(changed(small, "train", graph=True), change) as made:
        prepare_step(made)
        take_step(made, 0.1)
        missing = [name for name, p in made.model.named_parameters() if p.grad is None]
    assert missing == ["idle", "final_norm.weight"]


def test_a_non_finite_step_never_reaches_the_weights(train) -> None:
    huge = ["optim.lr=1e30", "optim.warmup_steps=0", "optim.schedule=constant", "train.steps=50"]
    eager = train(*huge, "train.graph=false", folder="eager")
    replayed = train(*huge, "train.graph=true", folder="replayed")
    assert (replayed.status, replayed.result["steps"]) == (ExitStatus.NON_FINITE, 1)
    assert same(eager, replayed)


# ---- what cannot be replayed


def spoiled(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[LanguageModel, Tensor], Any]
) -> None:
    """Let every loss pass through ``change``."""
    loss = LanguageModel.loss

    def other(model: LanguageModel, *given: Any) -> Any:
        number, states = loss(model, *given)
        return change(model, number), states

    monkeypatch.setattr(LanguageModel, "loss", other)


def test_a_model_that_waits_for_the_gpu_is_refused(
    train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoiled(monkeypatch, lambda model, loss: loss if loss.is_meta or loss.item() > 0 else None)
    assert train("train.graph=false", folder="eager").status == ExitStatus.OK
    with pytest.raises(UserError) as error:
        train("train.graph=true")
    assert str(error.value) == (
        f"train.graph=true: e88_tiny cannot be captured ({NOT_PERMITTED}); use train.graph=false"
    )
    assert not (tmp_path / "run" / "result.json").exists()


def test_a_model_that_counts_in_python_is_refused(train, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(model: LanguageModel, loss: Tensor) -> Tensor:
        calls.append(1)
        return loss * len(calls)

    spoiled(monkeypatch, counted)
    with pytest.raises(UserError, match=r"e88_tiny gives other results as a CUDA graph; use"):
        train("train.graph=true")


def test_a_parameter_of_the_first_chunk_alone_is_refused(
    small: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = LanguageModel.forward

    def other(model: LanguageModel, tokens: Tensor, states: Any = None) -> Any:
        logits, carried = forward(model, tokens, states)
        return logits + (model.start if states is None else 0.0), carried

    def change(model: LanguageModel) -> None:
        model.register_parameter("start", nn.Parameter(torch.zeros(())))

    monkeypatch.setattr(LanguageModel, "forward", other)
    with (
        started(changed(small, "train", graph=True), change) as made,
        pytest.raises(UserError, match="parameters that only rows with states reach"),
    ):
        prepare_step(made)


def test_states_that_grow_are_refused(small: RunConfig) -> None:
    config = of_cell(small, "llama", context=9)
    with (
        started(changed(config, "train", graph=True)) as made,
        pytest.raises(UserError, match="llama carries states that change their shape"),
    ):
        prepare_step(made)


def test_memory_that_runs_out_in_a_capture_is_no_mistake(
    train, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(graphs: Tapes, work: Callable[[], None]) -> None:
        try:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        finally:  # as torch.cuda.graph ends: the end of a capture fails, too
            raise RuntimeError("CUDA error: operation failed due to a previous error")

    monkeypatch.setattr(Tapes, "record", record)
    run = train("train.graph=true")
    assert run.status == ExitStatus.OUT_OF_MEMORY
    assert "Tried to allocate 9 GiB" in run.result["error"]


# ---- too little memory for what is done between two steps

VALIDATING = ("train.steps=9", "train.val_every=3", "train.tbptt=true", "train.grad_accum=2")


class Crowded:
    """Lets validation run out of memory beside a recorded pass, or in any case."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, always: bool = False) -> None:
        self.refused = 0
        score, replays = HeldOut.score, list[cuda_graph.ReplayedPass]()
        prepare = cuda_graph.ReplayedPass.prepare

        def recorded(replayed: cuda_graph.ReplayedPass) -> float:
            replays.append(replayed)
            return prepare(replayed)

        def crowded(held_out: HeldOut, *given: Any, **named: Any) -> Any:
            if always or replays[-1]._recorded:
                self.refused += 1
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
            return score(held_out, *given, **named)

        monkeypatch.setattr(cuda_graph.ReplayedPass, "prepare", recorded)
        monkeypatch.setattr(HeldOut, "score", crowded)


@pytest.mark.parametrize("optim", ["adamw", "schedulefree", "muon"])
def test_a_step_makes_room_for_validation_and_is_recorded_again(
    train, optim: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    chosen = (*VALIDATING, f"optim={optim}", "model.dropout=0.3")
    roomy = train(*chosen, "train.graph=true", folder="roomy")
    capfd.readouterr()
    crowded = Crowded(monkeypatch)
    found = train(*chosen, "train.graph=true", folder="crowded")
    assert crowded.refused == 2  # after 3 and 6 steps; after 9 the step has gone
    assert capfd.readouterr().out.count("validating did not fit into memory") == 1
    assert found.status == ExitStatus.OK
    assert same(roomy, found)
    assert found.records("val") == roomy.records("val")
    assert found.result["reload_difference_bpb"] == roomy.result["reload_difference_bpb"]


def test_a_validation_that_never_fits_loses_no_step(train, monkeypatch: pytest.MonkeyPatch) -> None:
    crowded = Crowded(monkeypatch, always=True)
    found = train(*VALIDATING, "train.graph=true")
    assert (found.status, crowded.refused) == (ExitStatus.OUT_OF_MEMORY, 2)
    assert "validating does not fit into memory (CUDA out of memory" in found.result["error"]
    assert "smaller train.batch_size" in found.result["error"]
    assert "a step of" not in found.result["error"]
    assert find_checkpoint(str(found.folder)).step == 3


def test_a_forecast_that_does_not_fit_stops_nothing(train, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*given: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    monkeypatch.setattr(HeldOut, "forecast", short)
    assert train("train.graph=true").status == ExitStatus.OK


def test_a_saved_model_is_not_compared_where_two_do_not_fit(
    train, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def short(one: Any, *given: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    monkeypatch.setattr(Checkpoint, "load_weights", short)
    found = train("train.graph=true")
    assert found.status == ExitStatus.OK
    assert found.result["val_bpb"] > 0
    assert found.result["reload_difference_bpb"] is None
    assert "the saved weights were not checked" in capfd.readouterr().out


def test_a_copy_that_does_not_fit_is_saved_with_more_room(
    train, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_dict, refused = TrainingState.state_dict, list[int]()

    def crowded(one: TrainingState) -> dict[str, Any]:
        if not one.released and not refused:
            refused.append(one.step)
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return state_dict(one)

    roomy = train(
        "train.steps=9",
        "train.save_every=4",
        "train.val_every=null",
        "train.graph=true",
        folder="roomy",
    )
    monkeypatch.setattr(TrainingState, "state_dict", crowded)
    found = train(
        "train.steps=9",
        "train.save_every=4",
        "train.val_every=null",
        "train.graph=true",
        folder="crowded",
    )
    assert refused == [4]
    assert found.status == ExitStatus.OK
    assert same(roomy, found)


def test_a_stopped_run_saves_without_the_memory_of_a_step(
    train, monkeypatch: pytest.MonkeyPatch
) -> None:
    state_dict = TrainingState.state_dict

    def crowded(one: TrainingState) -> dict[str, Any]:
        if not one.released:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return state_dict(one)

    def stop(one: Agreement) -> Moment:
        if one._state.step == 4:
            one._interruption.take_over(signal.SIGTERM)
        return look(one)

    look = Agreement.look
    monkeypatch.setattr(Agreement, "look", stop)
    monkeypatch.setattr(TrainingState, "state_dict", crowded)
    settings = ("train.steps=9", "train.val_every=null", "train.save_minutes=null")
    found = train(*settings, "train.graph=true")
    assert found.result["status"] == "interrupted"
    assert find_checkpoint(str(found.folder)).step == 4


def test_a_step_that_cannot_be_recorded_again_loses_no_step(
    train, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, passes = Tapes.record, list[str]()

    def full(graphs: Tapes, work: Callable[[], None]) -> Callable[[], None]:
        if crowded.refused:
            passes.append("refused")
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return record(graphs, work)

    crowded = Crowded(monkeypatch)
    monkeypatch.setattr(Tapes, "record", full)
    found = train(
        "train.steps=9", "train.val_every=4", "train.save_minutes=null", "train.graph=true"
    )
    assert (found.status, passes) == (ExitStatus.OUT_OF_MEMORY, ["refused"] * 2)
    assert "recording the step again does not fit into memory" in found.result["error"]
    assert find_checkpoint(str(found.folder)).step == 4


def test_a_recording_that_fails_leaves_the_generator_and_the_flag(
    small: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(work: Callable[[], None]) -> None:
        work()
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    optim = compose_config(["optim=schedulefree"]).optim
    config = changed(small, "model", options=small.model.options | {"dropout": 0.5})
    config = changed(config, "train", graph=True).model_copy(update={"optim": optim})
    with started(config) as made:
        prepare_step(made)
        generator = torch.get_rng_state()
        assert made.replayed is not None
        monkeypatch.setattr(made.replayed._graphs, "record", full)
        with pytest.raises(torch.OutOfMemoryError):
            prepare_step(made)
        assert torch.equal(torch.get_rng_state(), generator)
        with pytest.raises(torch.OutOfMemoryError):
            made.replayed.record_update(partial(update, made), made.finite.blocked)
        assert not made.finite.blocked


@pytest.mark.parametrize("blocked", [False, True])
def test_recording_an_update_again_keeps_whether_steps_are_blocked(
    small: RunConfig, blocked: bool
) -> None:
    optim = compose_config(["optim=schedulefree"]).optim
    config = changed(small, "train", graph=True).model_copy(update={"optim": optim})
    with started(config) as made:
        prepare_step(made)
        made.finite.blocked.fill_(blocked)
        release_step(made)
        prepare_step(made)
        assert bool(made.finite.blocked) is blocked
        assert made.replayed_update is not None


# ---- what is asked of PyTorch


def test_graphs_are_captured_where_the_passes_ran_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels and workspaces belong to a stream, and memory to a pool that all graphs share."""
    said: list[str] = []

    class Stream:
        def __init__(self, name: object) -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            said.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        said.append(f"on {stream.name}")
        yield
        said.append(f"off {stream.name}")

    @contextmanager
    def capture(*args: Any, **kwargs: Any) -> Iterator[None]:
        given = signature.bind(None, *args, **kwargs).arguments
        said.append(f"capture of {given['pool']} on {given['stream'].name}")
        yield
        said.append("captured")

    numbers, signature = count(1), inspect.signature(torch.cuda.graph.__init__)
    captured = SimpleNamespace(replay=lambda: said.append("replayed"))
    for name, fake in {
        "Stream": Stream,
        "stream": on,
        "current_stream": lambda: Stream("main"),
        "graph": capture,
        "graph_pool_handle": lambda: f"pool {next(numbers)}",
        "CUDAGraph": lambda: captured,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    graphs = CudaGraphs(GPU)
    with graphs.aside():
        said.append("first")
    graphs.record(lambda: said.append("work"))()
    graphs.record(lambda: said.append("more"))
    graphs.release()
    graphs.record(lambda: said.append("again"))
    assert said == [
        *("cuda waits for main", "on cuda", "first", "off cuda", "main waits for cuda"),
        *("capture of pool 1 on cuda", "work", "captured", "replayed"),
        *("capture of pool 1 on cuda", "more", "captured"),
        *("capture of pool 2 on cuda", "again", "captured"),
    ]


# ---- what train.graph means

CONFLICTS: dict[str, tuple[tuple[str, ...], str]] = {
    "no gpu": (("train.device=cpu",), "a CUDA graph needs a GPU, not train.device=cpu; use"),
    "compiled": (("train.compile=true",), "cannot be combined with train.compile=true; drop one"),
    "recomputed": (
        ("train.activation_checkpointing=true",),
        "cannot be combined with train.activation_checkpointing=true; drop one",
    ),
    "growing states": (
        ("model=llama", "train.tbptt=true", "model.context=514"),
        "the carried states grow from chunk to chunk; use model.context=513 or less, or train.g",
    ),
}


@pytest.mark.parametrize(("overrides", "words"), CONFLICTS.values(), ids=CONFLICTS)
def test_settings_that_exclude_a_graph(overrides: tuple[str, ...], words: str) -> None:
    with pytest.raises(UserError, match=r"^train\.graph=true: ") as error:
        compose_config(["train.graph=true", *overrides])
    assert words in str(error.value)
    assert not cuda_graph.uses_graph(compose_config(list(overrides)), GPU)
    assert not cuda_graph.uses_graph(compose_config(["train.graph=false", *overrides]), GPU)


MEANINGS: dict[str, tuple[tuple[str, ...], torch.device, bool]] = {
    "auto on a gpu": ((), GPU, True),
    "auto on a cpu": ((), CPU, False),
    "auto in a profile": (("train.profile=true",), GPU, False),
    "auto of a loop in Python": (("model=e74", "model.nonlinearity=rmsnorm"), GPU, False),
    "auto of products step by step": (("model=e1",), GPU, True),
    "auto of a tape": (("model=e23",), GPU, True),
    "auto of the reference": (("kernels.backend=reference",), GPU, False),
    "auto of a package": (("model=mamba2",), GPU, True),
    "auto of PyTorch's own": (("model=llama",), GPU, True),
    "true of a loop in Python": (
        ("model=e74", "model.nonlinearity=rmsnorm", "train.graph=true"),
        GPU,
        True,
    ),
    "true in a profile": (("train.profile=true", "train.graph=true"), GPU, True),
    "true": (("train.graph=true",), GPU, True),
    "false": (("train.graph=false",), GPU, False),
    "states of one size": (("model=llama", "train.tbptt=true", "model.context=513"), GPU, True),
    "tbptt": (("train.tbptt=true",), GPU, True),
}


@pytest.mark.parametrize(("overrides", "device", "wanted"), MEANINGS.values(), ids=MEANINGS)
def test_what_the_setting_means(
    overrides: tuple[str, ...], device: torch.device, wanted: bool
) -> None:
    assert cuda_graph.uses_graph(compose_config(list(overrides)), device) is wanted


def test_a_machine_without_a_gpu_says_so() -> None:
    with pytest.raises(UserError) as error:
        cuda_graph.uses_graph(compose_config(["train.graph=true"]), CPU)
    assert str(error.value) == (
        "train.graph=true: a CUDA graph needs a GPU, and training runs on cpu here; "
        "use train.graph=auto"
    )


@pytest.mark.parametrize("value", ["maybe", "1", "null"])
def test_other_values_are_refused(value: str) -> None:
    with pytest.raises(UserError, match=f"train.graph={value}: expected one of auto, true, false"):
        compose_config([f"train.graph={value}"])


def test_the_run_says_how_it_computes(train, capfd: pytest.CaptureFixture[str]) -> None:
    train("train.graph=true", "train.steps=1")
    assert (
        "backend cpu on cpu, replayed as a CUDA graph, Muon in fp32, about"
        in capfd.readouterr().out
    )
    train("train.graph=false", "train.steps=1", folder="eager")
    assert "graph" not in capfd.readouterr().out
