"""``mode=train``: one run, from an empty folder (or a resumed one) to its result."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from elman.config import RunConfig
from elman.data.batches import Data, open_data
from elman.errors import ExitStatus, RunStatus, UserError, first_line
from elman.kernels.packages import (
    computation_path,
    on_slow_path,
    resolve_backend,
    slow_note,
    tuning_note,
)
from elman.launch.gpus.asking import asked_driver
from elman.launch.gpus.visible import refuse_wrong_visible
from elman.launch.run_folder import CONFIG_FILE, RunLock, config_hash, write_config
from elman.models import registry
from elman.parity.gate import ParityError, require_parity
from elman.report.plots import plot_losses
from elman.report.summary import print_summary
from elman.training.checkpoints import CheckpointStore
from elman.training.display import Display
from elman.training.environment import choose_device, describe_environment
from elman.training.memory import available_memory, estimate_memory, largest_batch
from elman.training.metrics import DEFINITIONS, METRICS_VERSION
from elman.training.recorder import Recorder, write_result
from elman.training.replay import uses_graph
from elman.training.trainer import Trainer
from elman.training.validation import uses_bf16

_log = logging.getLogger("elman.train")


def run(config: RunConfig, folder: Path | None) -> ExitStatus:
    """Train ``config`` in ``folder`` and return the exit status of the run.

    Raises:
        UserError: the run cannot start: data, device, checkpoint or a package is at fault.
    """
    assert folder is not None, "training always has a run folder"
    display = Display()
    device = choose_device(config.train.device)
    if device.type == "cpu" and config.train.device == "auto":
        refuse_wrong_visible(asked_driver())
    _prepare(config, device)
    backend = resolve_backend(
        registry.cell(config.model.cell).under(config.model.options),
        config.kernels.backend,
        device,
        allow_slow=config.baseline.allow_slow,
    )
    with RunLock(folder), open_data(config.data, config.train.chunk_size, display.say) as data:
        session = _Session(config, folder, data, device, display, backend)
        return session.run()


class _Session:
    """One process's share of a run: everything around the training itself."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        data: Data,
        device: torch.device,
        display: Display,
        backend: str,
    ) -> None:
        self._config, self._folder, self._data = config, folder, data
        self._device, self._display, self._backend = device, display, backend
        self._started = datetime.now().astimezone()
        self._trainer: Trainer | None = None
        self._error: str | None = None
        self._estimate: int | None = None
        self._parity: dict[str, Any] | None = None

    def run(self) -> ExitStatus:
        """Train and report; every way of ending leaves a ``result.json``."""
        write_config(self._folder, self._config)
        self._display.start()
        try:
            status = self._train()
        except UserError as error:
            if self._trainer is None or not self._trainer.ledger.begun:
                raise
            status = self._crashed(error)
        except KeyboardInterrupt:
            status = RunStatus.INTERRUPTED
            self._error = "interrupted before the weights were saved"
        except ParityError as error:
            status = self._refused(error)
        except Exception as error:
            _log.error("the run ended with this error", exc_info=True)
            ended = self._out_of_memory if _is_out_of_memory(error) else self._crashed
            status = ended(error)
        finally:
            self._display.stop()
        self._report(status)
        return status.exit_status

    def _train(self) -> RunStatus:
        config, folder = self._config, self._folder
        if (short := self._too_large()) is not None:
            return short
        self._prove()
        store = CheckpointStore(
            folder / "checkpoints",
            config.train.keep_checkpoints,
            (folder / CONFIG_FILE).read_text(encoding="utf-8"),
        )
        trainer = Trainer(config, folder, self._data, self._device, store, self._display)
        self._restore(trainer, store)
        self._announce(trainer)
        self._trainer = trainer
        with closing(Recorder(folder, config)) as recorder:
            status = trainer.run(recorder)
        if status is RunStatus.NAN:
            self._error = self._not_finite(trainer)
        return status

    def _prove(self) -> None:
        """Let no kernel train that computes something else than the reference."""
        train = self._config.train
        self._parity = require_parity(
            self._config.model,
            self._backend,
            self._device.type,
            "bf16" if uses_bf16(self._device, train.precision) else "fp32",
            self._folder,
            self._display.say,
        )

    def _restore(self, trainer: Trainer, store: CheckpointStore) -> None:
        train = self._config.train
        if train.resume is not None:
            store.remove_unfinished()
            newest = store.newest()
            if newest is None:
                self._display.say("no checkpoint was saved yet: starting from the first step")
            else:
                trainer.resume(newest)
                self._display.say(f"resuming after step {newest.step}")
        elif train.init_from is not None:
            trainer.start_from(train.init_from)

    @property
    def _as_run(self) -> RunConfig:
        """The configuration with the chosen backend: kernels keep less than plain loops."""
        kernels = self._config.kernels.model_copy(update={"backend": self._backend})
        return self._config.model_copy(update={"kernels": kernels})

    def _too_large(self) -> RunStatus | None:
        """Refuse, before anything is allocated, a step that would get the process killed."""
        if self._device.type != "cpu":
            return None  # a GPU says so itself, and nothing is killed
        self._display.activity("estimating memory")
        available = available_memory(self._device)
        self._estimate = estimate_memory(self._as_run).total
        if self._estimate <= available:
            return None
        self._error = self._advice(available)
        return RunStatus.OOM

    def _advice(self, available: int) -> str:
        train = self._config.train
        rows = largest_batch(self._as_run, available)
        need = f"a step of {train.batch_size} rows of {train.chunk_size} bytes"
        if self._estimate is not None:
            need += f" needs about {self._estimate / 1e9:.1f} GB"
        else:
            need += " does not fit"
        need += f" and {available / 1e9:.1f} GB are free; "
        if rows is not None and rows < train.batch_size:
            # A divisor, so that accumulation can keep the bytes per step exactly.
            rows = next(r for r in range(rows, 0, -1) if train.batch_size % r == 0)
            accum = train.grad_accum * train.batch_size // rows
            return need + (
                f"train.batch_size={rows} fits "
                f"(add train.grad_accum={accum} to keep the bytes per step)"
            )
        remedies = ["a smaller train.chunk_size", "a smaller model"]
        if not train.activation_checkpointing:
            remedies.insert(0, "train.activation_checkpointing=true")
        return need + f"try {' or '.join(remedies)}"

    def _out_of_memory(self, error: Exception) -> RunStatus:
        self._error = f"{first_line(error)}; {self._advice(available_memory(self._device))}"
        return RunStatus.OOM

    def _not_finite(self, trainer: Trainer) -> str:
        """Say what was not finite, at which step, what is saved, and what to try."""
        step, lr = trainer.stepper.step, self._config.optim.lr
        kept = f"the weights of step {step:,} are saved" if step else "no step was applied"
        return (
            f"the {trainer.ledger.non_finite} was not finite at step {step + 1:,}; {kept}; try a "
            f"smaller optim.lr ({lr / 3:.2g} is a third) or a longer optim.warmup_steps"
        )

    def _refused(self, error: Exception) -> RunStatus:
        """A check before the first step failed: nothing has been trained."""
        self._error = first_line(error)
        return RunStatus.REFUSED

    def _crashed(self, error: Exception) -> RunStatus:
        self._error = f"{type(error).__name__}: {first_line(error)}"
        return RunStatus.CRASH

    # ------------------------------------------------------------------ what is said about it

    def _announce(self, trainer: Trainer) -> None:
        config, model = self._config, self._config.model
        memory = f", about {self._estimate / 1e9:.1f} GB" if self._estimate else ""
        path = computation_path(registry.cell(model.cell), self._backend)
        through = f" ({path})" if path else ""
        graph = ", replayed as a CUDA graph" if trainer.stepper.graph else ""
        self._display.say(
            f"{model.name}: {model.cell} {model.dim}x{model.depth}, "
            f"{trainer.model.num_params():,} parameters, "
            f"backend {self._backend}{through} on {self._device}{graph}{memory}"
        )
        source = self._data.describe()
        self._display.say(f"data: {source['bytes']:,} bytes of {', '.join(source['paths'][:3])}")
        self._display.say(f"run folder: {self._folder}")
        cell = registry.cell(model.cell).under(model.options)
        if slow := slow_note(cell, config.kernels.backend, self._device, self._backend):
            self._display.say(f"{slow}; the result is marked")
        if note := tuning_note(path, self._backend):
            self._display.say(f"{note}; it is not counted")
        _log.info("configuration %s", config_hash(config))

    def _report(self, status: RunStatus) -> None:
        result = self._result(status)
        try:
            plot_losses(self._folder)
        except Exception as error:  # a picture is no reason to lose a result
            _log.warning("no loss curve", exc_info=True)
            self._display.say(f"warning: no loss curve ({first_line(error)})")
        write_result(self._folder, result)
        if self._error:
            self._display.say(f"elman: {status.value}: {self._error}")
        print_summary(self._display.console, self._folder, result)

    def _result(self, status: RunStatus) -> dict[str, Any]:
        """Assemble ``result.json``; every number in it has its definition beside it."""
        config, trainer = self._config, self._trainer
        result: dict[str, Any] = {
            "status": status.value,
            "error": self._error,
            "contended": None,
            "model": config.model.name,
            "cell": config.model.cell,
            "config_hash": config_hash(config),
            "started": self._started.isoformat(timespec="seconds"),
            "ended": datetime.now().astimezone().isoformat(timespec="seconds"),
            "memory_estimate_bytes": self._estimate,
        }
        if trainer is not None:
            stepper = trainer.stepper
            result |= trainer.ledger.numbers(
                trainer.model.num_params(), stepper.step, stepper.tokens, stepper.data_wait
            )
            result["reload_difference_bpb"] = trainer.reload_difference
            cell = registry.cell(config.model.cell)
            result["backend"] = self._backend
            result["parity"] = self._parity
            result["path"] = computation_path(cell, self._backend)
            result["slow_path"] = on_slow_path(self._backend)
            result["graph"] = stepper.graph
        result["data"] = self._data.describe()
        result["environment"] = describe_environment(self._device)
        result["metrics_version"] = METRICS_VERSION
        result["definitions"] = DEFINITIONS
        return result


def _prepare(config: RunConfig, device: torch.device) -> None:
    """Process-wide settings, and what the run needs, checked before any work."""
    uses_graph(config, device)  # or says that there is no GPU for it
    if config.log.wandb and find_spec("wandb") is None:
        raise UserError("log.wandb=true: wandb is not installed; pip install 'elman[wandb]'")
    if config.train.deterministic:
        # cuBLAS reads it when its first handle is made, so before anything runs on the GPU.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    if torch.cuda.is_available():
        torch.set_float32_matmul_precision("high")


def _is_out_of_memory(error: Exception) -> bool:
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
