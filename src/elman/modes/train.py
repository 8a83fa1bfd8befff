"""``mode=train``: one run, from an empty folder (or a resumed one) to its result."""

from __future__ import annotations

import json
import logging
import os
from contextlib import closing, nullcontext, suppress
from datetime import datetime
from functools import partial
from pathlib import Path

import torch

# The first optimizer of torch.optim imports it, for about a second. A job of a sweep imports it
# here, while another job still has its GPU.
import torch._dynamo

from elman.base import run_files
from elman.base.consoles import table_console
from elman.base.crash import kept_traceback, told
from elman.base.disk import is_disk_trouble
from elman.base.errors import UserError, first_line
from elman.base.exit_status import ExitStatus, RunStatus, is_failure
from elman.base.signals import Interruption, interruptible
from elman.base.units import different_sizes
from elman.base.whole_file import keep_room
from elman.config.run_config import RunConfig
from elman.config.validate import validate
from elman.data.batches import open_data
from elman.devices.environment import choose_device
from elman.devices.nvml_client import asked_driver
from elman.devices.visible import refuse_wrong_visible
from elman.distributed.division import Division, divide
from elman.distributed.team import ALONE, Joined, Team, own_device
from elman.distributed.watch import TeamError, is_connection
from elman.evaluation.result import RunResult
from elman.kernels.triton_tuning import tuning_told_to
from elman.models.backends import resolve_backend
from elman.models.cells import registry
from elman.modes.ranks import (
    compare_starts,
    cut_model,
    display_of,
    in_team,
    raise_elsewhere,
)
from elman.modes.train_description import Findings, TrainingSetup, run_result, start_lines
from elman.parity.gate import ParityError, require_norm_parity, require_parity
from elman.parity.shapes import TrainedSizes
from elman.report.plots import plot_losses
from elman.report.summary import print_summary
from elman.runs.folder import (
    RunLock,
    config_hash,
    config_text,
    read_config,
    write_config,
)
from elman.runs.prepared import PreparedRun
from elman.runs.resume import refuse_edited, refuse_without_checkpoints
from elman.runs.state import read_run_result
from elman.training.assembly import new_model, new_state
from elman.training.checkpoints.loading import saved_config
from elman.training.checkpoints.store import (
    Checkpoint,
    CheckpointError,
    CheckpointStore,
    DamagedError,
    checkpoint_size,
)
from elman.training.cuda_graph import uses_graph
from elman.training.display import Display
from elman.training.memory.advice import memory_advice, shortage
from elman.training.memory.estimate import available_memory, estimate_memory
from elman.training.memory_guard import TooLittleMemoryError
from elman.training.recorder import NoRecorder, Recorder, write_result
from elman.training.trainer import Trainer

_log = logging.getLogger("elman.train")
# Keys of a result that describe the definitions and the machine, not the run.
_OF_EVERY_RUN = ("definitions", "environment", "data", "parity")


def run(job: PreparedRun) -> ExitStatus:
    """Train ``config`` in ``folder`` and return the exit status of the run.

    Raises:
        UserError: the run cannot start: data, device, checkpoint or a package is at fault.
    """
    config, place = job.config, job.place
    display = display_of(job)
    device = own_device(choose_device(config.train.device), place)
    if device.type == "cpu" and config.train.device == "auto":
        refuse_wrong_visible(asked_driver())
    division = divide(config.parallel, config.train.batch_size, place)
    graph = uses_graph(config, device)
    _prepare(config, device, division)
    backend = resolve_backend(
        registry.cell(config.model.cell).under(config.model.options),
        config.kernels.backend,
        device,
        allow_slow=config.baseline.allow_slow,
    )

    def body(folder: Path, team: Team) -> ExitStatus:
        # Only the ranks that rank 0 leads are in a folder that is locked already.
        lock = RunLock(folder) if place.leads else nullcontext()
        with lock, open_data(config.data, config.train.chunk_size, display.say) as data:
            setup = TrainingSetup(config, folder, data, device, backend, graph, team, division)
            return _Session(job, setup, display).run()

    if not place.alone:
        return in_team(job, device, body)
    assert job.folder is not None, "training always has a run folder"
    return body(job.folder, ALONE)


class _Session:
    """One process's share of a run: everything around the training itself."""

    def __init__(self, job: PreparedRun, setup: TrainingSetup, display: Display) -> None:
        self._job, self._setup, self._display = job, setup, display
        self._config, self._folder = setup.config, setup.folder
        self._team, self._device = setup.team, setup.device
        self._findings = Findings()
        self._started = datetime.now().astimezone()
        self._trainer: Trainer | None = None
        self._error: str | None = None
        self._kept = self._to_read = ""
        self._taken_up = False
        self._recorder: Recorder = NoRecorder()

    def run(self) -> ExitStatus:
        """Train and report, and then let go of what receives the numbers elsewhere.

        Raises:
            UserError: the run could not begin.
            KeyboardInterrupt: a signal came before it began.
        """
        code: ExitStatus | None = None
        try:
            code = self._reported()
        finally:
            with suppress(KeyboardInterrupt):
                self._recorder.finish(failed=is_failure(code))
        return code

    def _reported(self) -> ExitStatus:
        """Train and report; a run that has begun leaves a ``result.json``, however it ends.

        A resumed run is taken up only when nothing can refuse it any more. Until then its folder
        keeps the result and the configuration of the earlier session.
        """
        if not self._resumes:
            self._take_up()
        self._display.start()
        with interruptible() as interruption:
            interruption.release()
            if isinstance(self._team, Joined):
                self._team.watch_for(interruption)
            try:
                with tuning_told_to(self._display.waiting):
                    status = self._train(interruption)
            except KeyboardInterrupt:
                if not self._begun:
                    raise
                status = RunStatus.INTERRUPTED
                self._error = "interrupted before the weights were saved"
                if isinstance(self._team, Joined):
                    self._team.end(status.value, self._error)
            except TeamError as error:
                status = self._ended_elsewhere(error)
            except Exception as error:
                if not self._begun and (isinstance(error, UserError) or is_disk_trouble(error)):
                    raise
                status = self._agreed(self._failed(error), error)
            finally:
                interruption.hold()
                self._display.stop()
            if self._taken_up and self._team.writes:
                return self._report(status, interruption)
        self._say_end(status)
        return status.exit_status

    @property
    def _resumes(self) -> bool:
        return self._config.train.resume is not None

    @property
    def _begun(self) -> bool:
        return self._trainer is not None and self._trainer.begun

    def _take_up(self) -> None:
        """Note in the run folder that the run has these settings from here on."""
        self._taken_up = True
        if not self._team.place.leads:
            return
        keep_room(self._folder / run_files.RESULT)
        write_config(self._folder, self._config)
        self._job.taken_up()
        _log.info("configuration %s", config_hash(self._config))

    def _ended_elsewhere(self, error: TeamError) -> RunStatus:
        """Return the status of a run that another rank ended.

        Raises:
            UserError: it could not start there.
            KeyboardInterrupt: a signal came there before the run began.
        """
        if not self._begun:
            raise_elsewhere(error)
        _log.error("%s", error)
        self._error = str(error)
        if self._team.writes and not self._team.place.leads:
            self._display = Display()  # rank 0 is gone
        return error.status

    def _agreed(self, status: RunStatus, error: Exception) -> RunStatus:
        """Tell the other ranks how this one failed; return the status that holds for all."""
        if not isinstance(self._team, Joined):
            return status
        if self._config.parallel.shard != "none" and is_connection(error):
            self._team.watch.find_failed_rank()  # the library that cuts the model met a lost rank
        ranked = f"rank {self._team.place.rank}: {self._error}{self._to_read}"
        self._to_read = ""
        ending = self._team.end(status.value, ranked)
        self._error = ending.error
        return RunStatus(ending.status)

    def _failed(self, error: Exception) -> RunStatus:
        """Return the status of a run that an error ended; its traceback goes to the log."""
        if isinstance(error, ParityError):
            return self._refused(error)
        if not isinstance(error, CheckpointError):  # whose message says it all
            _log.error("the run ended with this error")
            self._kept = kept_traceback(error, self._folder / run_files.LOG)
        return self._out_of_memory(error) if _is_out_of_memory(error) else self._crashed(error)

    def _train(self, interruption: Interruption) -> RunStatus:
        config, folder = self._config, self._folder
        short = self._too_large()
        if any(row[0] for row in self._team.gather(short is not None)):
            self._error = self._error or "a step does not fit into the memory of another rank"
            return RunStatus.OOM
        with self._team.host_first("checking kernels"):
            self._prove()
        store = CheckpointStore(
            folder / run_files.CHECKPOINTS,
            config.train.keep_checkpoints,
            config_text(config),
            self._display.say,
        )
        data, device = self._setup.data, self._device
        state = new_state(
            config,
            data,
            device,
            graph=self._setup.graph,
            team=self._team,
            shard=lambda model: cut_model(model, config, self._team),
        )
        again = partial(new_model, config, device)
        trainer = Trainer(config, folder, state, data, again, store, self._display, interruption)
        # A worker process ends only when no thread makes rows any more.
        with closing(state.batches):
            return self._run(trainer, store)

    def _run(self, trainer: Trainer, store: CheckpointStore) -> RunStatus:
        config, folder = self._config, self._folder
        self._restore(trainer, store)
        model, precision = trainer.state.model, trainer.state.optimizer.matrix_precision
        compare_starts(self._team, config, self._setup.data, model, precision)
        if self._team.place.leads:
            self._require_room(trainer)
        for line in start_lines(self._setup, self._findings, trainer):
            self._display.say(line)
        self._trainer = trainer
        trainer.first_pass()
        leads, say = self._team.place.leads, self._display.say
        self._recorder = Recorder(folder, config, say) if leads else NoRecorder()
        if not self._taken_up:
            self._take_up()
        with closing(self._recorder) as recorder:
            status = trainer.run(recorder)
        if status is RunStatus.NAN:
            self._error = self._not_finite(trainer)
        return status

    def _prove(self) -> None:
        """Refuse to train with a kernel that does not compute what the reference computes."""
        config, train, device = self._config, self._config.train, self._device.type
        given = (device, self._setup.precision, self._folder, self._display.say)
        sizes = TrainedSizes(train.batch_size, train.chunk_size, train.tbptt)
        self._findings.parity = require_parity(
            config.model,
            self._setup.backend,
            *given,
            sizes=sizes,
            resets=config.data.reset_at_documents,
        )
        norm_parity = require_norm_parity(config.model, config.kernels.backend, *given)
        self._findings.norm_parity = norm_parity

    def _require_room(self, trainer: Trainer) -> None:
        """Refuse a run whose first checkpoint does not fit the disk: it would train for nothing."""
        weights = sum(p.numel() * p.element_size() for p in trainer.state.model.parameters())
        needed = checkpoint_size(weights, weights)  # every optimizer keeps as much, or more
        disk = os.statvfs(self._folder)
        free = disk.f_bavail * disk.f_frsize
        if free < needed:
            wanted, left = different_sizes(needed, free)
            raise UserError(
                f"{self._folder}: a checkpoint needs at least {wanted} and the disk has {left} "
                "free; make room there, or name another disk with hydra.run.dir=<folder>"
            )

    def _restore(self, trainer: Trainer, store: CheckpointStore) -> None:
        train = self._config.train
        if train.resume is not None:
            try:
                newest = store.newest()
                if newest is not None:
                    before, ended = self._before(newest), self._ended_at(newest.step)
                    refuse_edited(self._config, before, self._folder, newest.path)
                    trainer.resume(newest, ended=ended, before=before)
            except DamagedError as error:
                raise error.in_resume(Path(train.resume)) from None
            if newest is None:
                refuse_without_checkpoints(self._folder)
                self._display.say("no checkpoint was saved yet: starting from the first step")
        elif train.init_from is not None:
            trainer.start_from(train.init_from)

    def _before(self, newest: Checkpoint) -> RunConfig:
        """Return the configuration under which a checkpoint was saved."""
        try:
            return saved_config(newest)
        except UserError:  # damaged: the run's own, which is that of its last session
            return validate(read_config(self._folder, "train.resume"))

    def _ended_at(self, step: int) -> bool:
        """Whether an earlier session wrote all that a run leaves after so many steps."""
        result = read_run_result(self._folder)
        whole = result is not None and result.status == RunStatus.OK and result.steps == step
        return whole and (self._folder / run_files.LOSS_CURVE).exists()

    @property
    def _as_run(self) -> RunConfig:
        """The configuration of one pass with the chosen backend, which keeps less than loops."""
        kernels = self._config.kernels.model_copy(update={"backend": self._setup.backend})
        train = self._config.train.model_copy(update={"batch_size": self._setup.division.rows})
        return self._config.model_copy(update={"kernels": kernels, "train": train})

    def _too_large(self) -> RunStatus | None:
        """Refuse, before anything is allocated, a step that would get the process killed."""
        if self._device.type != "cpu":
            return None  # a GPU raises an error itself, and nothing is killed
        self._display.activity("estimating memory")
        available = available_memory(self._device)
        self._findings.estimate = estimate_memory(self._as_run).total
        if self._findings.estimate <= available:
            return None
        self._error = self._advice(available)
        return RunStatus.OOM

    def _advice(self, available: int) -> str:
        return memory_advice(self._config, self._as_run, available, self._findings.estimate)

    def _out_of_memory(self, error: Exception) -> RunStatus:
        if isinstance(error, TooLittleMemoryError):
            self._error = str(error)
            return RunStatus.OOM
        self._error = f"{shortage(error)}; {self._advice(available_memory(self._device))}"
        return RunStatus.OOM

    def _not_finite(self, trainer: Trainer) -> str:
        """Say what was not finite, at which step, what is saved, and what to try."""
        step, lr = trainer.state.step, self._config.optim.lr
        kept = f"the weights of step {step:,} are saved" if step else "no step was applied"
        return (
            f"the {trainer.totals.non_finite} was not finite at step {step + 1:,}; {kept}; try a "
            f"smaller optim.lr ({lr / 3:.2g} is a third) or a longer optim.warmup_steps"
        )

    def _refused(self, error: Exception) -> RunStatus:
        """A check before the first step failed: nothing has been trained."""
        self._error = first_line(error)
        return RunStatus.REFUSED

    def _crashed(self, error: Exception) -> RunStatus:
        plain = isinstance(error, UserError | CheckpointError)
        self._error = first_line(error) if plain else told(error)
        self._to_read = "" if plain else f"; {self._kept}"
        return RunStatus.CRASH

    # ------------------------------------------------------------------ what is said about it

    def _report(self, status: RunStatus, interruption: Interruption) -> ExitStatus:
        """Write the result, safe from signals, and then show it, which a signal may cut short."""
        given = (self._setup, self._findings, self._trainer, self._started)
        result, code = run_result(*given, status, self._error), status.exit_status
        if (told := self._recorder.remote) is not None:
            result.wandb = told
        with suppress(OSError):  # a picture of an earlier session would hide a kill before the new
            (self._folder / run_files.LOSS_CURVE).unlink(missing_ok=True)
        try:
            write_result(self._folder, result)
        except OSError as error:
            code = code or ExitStatus.FAILED
            self._say_result(result, error)
        interruption.release()
        with suppress(KeyboardInterrupt):
            self._say_end(status)
            self._draw()
            print_summary(table_console(), self._folder, result)
        return code

    def _draw(self) -> None:
        try:
            plot_losses(self._folder)
        except Exception as error:  # a picture is no reason to lose a result
            _log.warning("no loss curve (%s)", first_line(error))
            self._display.say(f"warning: no loss curve ({first_line(error)})")

    def _say_end(self, status: RunStatus) -> None:
        if self._error:
            self._display.error(f"elman: {status.value}: {self._error}{self._to_read}")

    def _say_result(self, result: RunResult, error: OSError) -> None:
        """Print the numbers of a run whose result could not be written."""
        kept = {key: value for key, value in result.tree().items() if key not in _OF_EVERY_RUN}
        self._display.error(
            f"elman: {self._folder / run_files.RESULT}: cannot be written ({error.strerror}); "
            f"it is {json.dumps(kept)}"
        )


def _prepare(config: RunConfig, device: torch.device, division: Division) -> None:
    """Process-wide settings, and what the run needs, checked before any work."""
    if division.exact and device.type == "cpu":
        torch.set_num_threads(1)  # more would share out sums by their number
    if division.exact:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if config.train.deterministic:
        # cuBLAS reads it when it makes its first handle, so set it before anything runs on the GPU.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
