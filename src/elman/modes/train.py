"""``mode=train``: one run, from an empty folder (or a resumed one) to its result.

:class:`_Session` says in order what a run does: it chooses what computes, meets the other ranks,
opens the data, checks, trains, and reports.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import closing, nullcontext, suppress
from datetime import datetime
from functools import partial
from pathlib import Path

import torch

from elman.base import run_files
from elman.base.consoles import table_console
from elman.base.disk import is_disk_trouble
from elman.base.errors import UserError, first_line
from elman.base.exit_status import ExitStatus, RunStatus, is_failure
from elman.base.rank_place import RankPlace
from elman.base.signals import Interruption, interruptible
from elman.base.whole_file import keep_room
from elman.config.run_config import RunConfig
from elman.config.validate import validate
from elman.data.text import AnyRunData, open_data
from elman.data.tokenizers.opening import changed_since
from elman.data.tokenizers.tokenizer import Tokenizer
from elman.devices.environment import choose_device
from elman.devices.nvml_client import asked_driver
from elman.devices.visible import refuse_wrong_visible
from elman.distributed.division import Division, divide
from elman.distributed.team import ALONE, Joined, Team, own_device
from elman.distributed.watch import TeamError
from elman.evaluation.result import RunResult
from elman.evaluation.validation import uses_bf16
from elman.kernels.triton_tuning import tuning_told_to
from elman.models.backends import check_precision
from elman.models.mixed import resolved_backends
from elman.modes.ranks import display_of, in_team, raise_elsewhere
from elman.modes.train_checks import compare_starts, prove_kernels, require_room, too_large
from elman.modes.train_description import run_result, start_lines
from elman.modes.train_ending import RunEnd, failed, interrupted, not_finite
from elman.modes.train_setup import Findings, TrainingSetup
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
from elman.sections.training import DataConfig, TrainConfig
from elman.training.assembly import new_model, new_state
from elman.training.checkpoints.loading import saved_config, saved_tokenizer
from elman.training.checkpoints.store import Checkpoint, CheckpointStore, DamagedError
from elman.training.cuda_graph import uses_graph
from elman.training.display import Display
from elman.training.flops import flops_per_byte
from elman.training.recorder import NoRecorder, Recorder, write_result
from elman.training.trainer import Trainer

_log = logging.getLogger("elman.train")
# Keys of a result that describe the definitions and the machine, not the run.
_OF_EVERY_RUN = ("definitions", "environment", "data", "parity")


def prepare_ahead(config: RunConfig) -> None:
    """Do what needs no device: a job of a sweep does so while another job has its GPU."""
    if config.log.plot:
        import elman.report.plots  # noqa: F401
    if config.train.compile or config.train.activation_checkpointing:
        import torch._dynamo  # noqa: F401
    with suppress(Exception):  # the run meets it again, and then it has a result that tells
        flops_per_byte(config.model, config.train)


def run(job: PreparedRun) -> ExitStatus:
    """Train the model of a job in its run folder, and return the exit status of the run.

    Raises:
        UserError: the run cannot start: data, device, checkpoint or a package is at fault.
    """
    return _Session(job).run()


class _Session:
    """One process's share of a run; its methods stand in the order in which a run calls them."""

    def __init__(self, job: PreparedRun) -> None:
        self._job, self._config = job, job.config
        self._display = display_of(job.place)
        self._findings = Findings()
        self._trainer: Trainer | None = None
        self._taken_up = False
        self._recorder: Recorder = NoRecorder()
        self._setup: TrainingSetup  # from when the data is open
        self._started: datetime  # likewise

    def run(self) -> ExitStatus:
        """Choose what computes, meet the other ranks if there are some, and train in the folder."""
        job, config = self._job, self._config
        device = _device(config.train, job.place)
        division = divide(config.parallel, config.train.batch_size, job.place)
        graph = uses_graph(config, device)
        _set_process(config.train, device, division)
        backend = resolved_backends(
            config.model,
            config.kernels.backend,
            device,
            allow_slow=config.baseline.allow_slow,
        )
        check_precision(backend, "bf16" if uses_bf16(device, config.train.precision) else "fp32")

        def in_folder(folder: Path, team: Team) -> ExitStatus:
            # Only the ranks that rank 0 leads are in a folder that is locked already.
            lock = RunLock(folder) if job.place.leads else nullcontext()
            with lock, self._opened(folder) as data:
                self._setup = TrainingSetup(
                    config, folder, data, device, backend, graph, team, division
                )
                self._started = datetime.now().astimezone()
                return self._with_data()

        if not job.place.alone:
            return in_team(job, device, in_folder)
        assert job.folder is not None, "training always has a run folder"
        return in_folder(job.folder, ALONE)

    def _opened(self, folder: Path) -> AnyRunData:
        """Open the data, for an earlier run with the tokenizer that it began with."""
        config, tokenizer = self._config, None
        if config.train.resume is not None:
            try:
                newest = CheckpointStore(folder / run_files.CHECKPOINTS, 1, "").newest()
                tokenizer = None if newest is None else saved_tokenizer(newest, config)
                self._compare_file(tokenizer)
            except DamagedError as error:
                raise error.in_resume(Path(config.train.resume)) from None
        return open_data(config.data, config.train.chunk_size, self._display.say, tokenizer)

    def _compare_file(self, tokenizer: Tokenizer | None) -> None:
        """Say if the file of the tokenizer makes other tokens now than those of the run."""
        data = self._config.data
        if tokenizer is None or not isinstance(data, DataConfig):
            return
        if changed_since(data.tokenizer, tokenizer):
            self._display.say(
                f"data.tokenizer={data.tokenizer}: changed since the run began; the run goes on "
                "with the tokens that its checkpoint has"
            )

    def _with_data(self) -> ExitStatus:
        """Train and report, and then let go of what receives the numbers elsewhere.

        Raises:
            UserError: the run could not begin.
            KeyboardInterrupt: a signal came before it began.
        """
        code: ExitStatus | None = None
        try:
            code = self._train_and_report()
        finally:
            with suppress(KeyboardInterrupt):
                self._recorder.finish(failed=is_failure(code))
        return code

    def _train_and_report(self) -> ExitStatus:
        """Train and report; a run that has begun leaves a ``result.json``, however it ends.

        A resumed run is taken up only when nothing can refuse it any more. Until then its folder
        keeps the result and the configuration of the earlier session.
        """
        team = self._setup.team
        if self._config.train.resume is None:
            self._take_up()
        self._display.start()
        with interruptible() as interruption:
            interruption.release()
            if isinstance(team, Joined):
                team.watch_for(interruption)
            try:
                with tuning_told_to(self._display.waiting):
                    end = self._train(interruption)
            except KeyboardInterrupt:
                if not self._begun:
                    raise
                end = interrupted(team)
            except TeamError as error:
                end = self._ended_elsewhere(error)
            except Exception as error:
                if not self._begun and (isinstance(error, UserError) or is_disk_trouble(error)):
                    raise
                end = failed(error, self._setup, self._findings)
            finally:
                interruption.hold()
                self._display.stop()
            if self._taken_up and team.writes:
                return self._report(end, interruption)
        self._say(end)
        return end.status.exit_status

    @property
    def _begun(self) -> bool:
        return self._trainer is not None and self._trainer.begun

    def _take_up(self) -> None:
        """Note in the run folder that the run has these settings from here on."""
        self._taken_up = True
        if not self._setup.team.place.leads:
            return
        keep_room(self._setup.folder / run_files.RESULT)
        write_config(self._setup.folder, self._config)
        self._job.taken_up()
        _log.info("configuration %s", config_hash(self._config))

    def _train(self, interruption: Interruption) -> RunEnd:
        """Check what can be checked without a model, and train one."""
        setup, team = self._setup, self._setup.team
        short = None
        self._job.phases.end("build")
        if setup.device.type == "cpu":  # a GPU raises an error itself, and nothing is killed
            self._display.activity("estimating memory")
            short = too_large(setup, self._findings)
        if any(row[0] for row in team.gather(short is not None)):
            short = short or "a step does not fit into the memory of another rank"
            return RunEnd(RunStatus.OOM, short)
        with team.host_first("checking kernels"):
            prove_kernels(setup, self._findings, self._display.say)
        self._job.phases.end("check")
        store = CheckpointStore(
            setup.folder / run_files.CHECKPOINTS,
            self._config.train.keep_checkpoints,
            config_text(self._config),
            self._display.say,
            None if setup.data.tokenizer is None else setup.data.tokenizer.definition,
        )
        trainer = self._new_trainer(store, interruption)
        # A worker process ends only when no thread makes rows any more.
        with closing(trainer.state.batches):
            return self._train_model(trainer, store)

    def _new_trainer(self, store: CheckpointStore, interruption: Interruption) -> Trainer:
        config, setup = self._config, self._setup
        state = new_state(
            config,
            setup.data,
            setup.device,
            graph=setup.graph,
            team=setup.team,
            shard=setup.cut,
        )
        again = partial(new_model, config, setup.device, setup.data.tokenizer)
        arguments = (again, store, self._display, interruption)
        return Trainer(config, setup.folder, state, setup.data, *arguments)

    def _train_model(self, trainer: Trainer, store: CheckpointStore) -> RunEnd:
        """Begin where the run was, if it is resumed; check the rest, and take the steps."""
        config, setup, say = self._config, self._setup, self._display.say
        self._restore(trainer, store)
        model, precision = trainer.state.model, trainer.state.optimizer.matrix_precision
        compare_starts(setup, model, precision)
        leads = setup.team.place.leads
        if leads and config.train.checkpoints:
            require_room(setup.folder, model)
        for line in start_lines(setup, self._findings, trainer):
            say(line)
        self._trainer = trainer
        self._job.phases.end("build")
        trainer.first_pass()
        self._job.phases.end("first_step")
        self._recorder = Recorder(setup.folder, config, say) if leads else NoRecorder()
        if not self._taken_up:
            self._take_up()
        self._job.phases.end("build")
        with closing(self._recorder) as recorder:
            status = trainer.run(recorder)
        return not_finite(trainer) if status is RunStatus.NAN else RunEnd(status)

    def _restore(self, trainer: Trainer, store: CheckpointStore) -> None:
        train = self._config.train
        if train.resume is not None:
            try:
                newest = store.newest()
                if newest is not None:
                    before, ended = self._before(newest), self._ended_at(newest.step)
                    refuse_edited(self._config, before, self._setup.folder, newest.path)
                    trainer.resume(newest, ended=ended, before=before)
            except DamagedError as error:
                raise error.in_resume(Path(train.resume)) from None
            if newest is None:
                refuse_without_checkpoints(self._setup.folder)
                self._display.say("no checkpoint was saved yet: starting from the first step")
        elif train.init_from is not None:
            trainer.start_from(train.init_from, self._setup.data.tokenizer)

    def _before(self, newest: Checkpoint) -> RunConfig:
        """Return the configuration under which a checkpoint was saved."""
        try:
            return saved_config(newest)
        except UserError:  # damaged: the run's own, which is that of its last session
            return validate(read_config(self._setup.folder, "train.resume"))

    def _ended_at(self, step: int) -> bool:
        """Whether an earlier session wrote all that a run leaves after so many steps."""
        result = read_run_result(self._setup.folder)
        whole = result is not None and result.status == RunStatus.OK and result.steps == step
        drawn = (self._setup.folder / run_files.LOSS_CURVE).exists()
        return whole and (drawn or not self._config.log.plot)

    def _ended_elsewhere(self, error: TeamError) -> RunEnd:
        """Return how a run ends that another rank ended.

        Raises:
            UserError: it could not start there.
            KeyboardInterrupt: a signal came there before the run began.
        """
        if not self._begun:
            raise_elsewhere(error)
        _log.error("%s", error)
        team = self._setup.team
        if team.writes and not team.place.leads:
            self._display = Display()  # rank 0 is gone
        return RunEnd(error.status, str(error))

    def _report(self, end: RunEnd, interruption: Interruption) -> ExitStatus:
        """Write the result, safe from signals, and then show it, which a signal may cut short."""
        setup, folder, code = self._setup, self._setup.folder, end.status.exit_status
        arguments = (setup, self._findings, self._trainer, self._started)
        result = run_result(*arguments, end.status, end.error, self._job.phases)
        self._recorder.fill(result)
        with suppress(OSError):  # a picture of an earlier session would hide a kill before the new
            (folder / run_files.LOSS_CURVE).unlink(missing_ok=True)
        try:
            write_result(folder, result)
        except OSError as error:
            code = code or ExitStatus.FAILED
            self._say_result(result, error)
        interruption.release()
        with suppress(KeyboardInterrupt):
            self._say(end)
            self._draw()
            print_summary(table_console(), folder, result)
        return code

    def _say_result(self, result: RunResult, error: OSError) -> None:
        """Print the numbers of a run whose result could not be written."""
        numbers = {key: value for key, value in result.tree().items() if key not in _OF_EVERY_RUN}
        self._display.error(
            f"elman: {self._setup.folder / run_files.RESULT}: cannot be written "
            f"({error.strerror}); it is {json.dumps(numbers)}"
        )

    def _say(self, end: RunEnd) -> None:
        if end.error:
            self._display.error(f"elman: {end.status.value}: {end.error}{end.to_read}")

    def _draw(self) -> None:
        if not self._config.log.plot:
            return
        from elman.report.plots import plot_losses  # imported ahead, by the runs that draw

        try:
            plot_losses(self._setup.folder)
        except Exception as error:  # a picture is no reason to lose a result
            _log.warning("no loss curve (%s)", first_line(error))
            self._display.say(f"warning: no loss curve ({first_line(error)})")


def _device(train: TrainConfig, place: RankPlace) -> torch.device:
    """Return the device of this process."""
    device = own_device(choose_device(train.device), place)
    if device.type == "cpu" and train.device == "auto":
        refuse_wrong_visible(asked_driver())
    return device


def _set_process(train: TrainConfig, device: torch.device, division: Division) -> None:
    """Set what holds for the whole process, before anything computes."""
    if division.exact and device.type == "cpu":
        torch.set_num_threads(1)  # more would share out sums by their number
    if division.exact:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if train.deterministic:
        # cuBLAS reads it when it makes its first handle, so set it before anything runs on the GPU.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")
