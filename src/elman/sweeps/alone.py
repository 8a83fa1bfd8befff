"""One command whose job does not run in this process.

``launcher.gpus_per_job=8`` runs it by a process for each GPU, and ``sweep.dry_run=true`` only
checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from omegaconf import DictConfig, OmegaConf

from elman.base.errors import UserError
from elman.base.quoting import shell_line
from elman.config.compose import typed_overrides
from elman.config.keys import UNTUNED, named_keys
from elman.config.ranks import GPUS_PER_JOB, Where, check_ranks, starts_ranks
from elman.config.run_config import MODES
from elman.launchers.command import OF_THE_SWEEP
from elman.launchers.gpus.slots import checked_gpus
from elman.launchers.job import wants_gpu
from elman.runs.prepare import check_alone
from elman.sections.launching import GpusLauncher
from elman.sweeps.checks import files_note
from elman.sweeps.devices import check_device, why_no_gpu
from elman.sweeps.settings import is_of_sweeps, sweep_settings, without_sweep_settings
from elman.sweeps.sizes import builds_a_model, check_countable, count_params

DRY_RUN = "sweep.dry_run"
_READ = {f"launcher.{name}" for name in ("gpus", "exclude", "wait_minutes", "save_seconds")}
_READ |= {DRY_RUN}
# Not a setting of the sweep's runs, but of this one.
_OWN = ("hydra.run.dir=", "hydra/run=")


def asks_for_ranks(tree: DictConfig) -> bool:
    """Whether a single command asks for several GPUs, and is not itself one of several ranks.

    Raises:
        UserError: it is a rank, and its command asks for ranks.
    """
    typed = GPUS_PER_JOB in named_keys(typed_overrides(tree, "task"))
    return starts_ranks(OmegaConf.select(tree, GPUS_PER_JOB), typed)


def is_dry(tree: DictConfig) -> bool:
    """Whether a single command is only to be checked.

    Raises:
        UserError: it says neither true nor false.
    """
    named = named_keys(typed_overrides(tree, "task"))
    return DRY_RUN in named and sweep_settings(tree).sweep.dry_run


def plan_alone(tree: DictConfig, config_flags: Sequence[str]) -> Callable[[], int]:
    """Check a single command as a sweep checks its jobs; return what prints its size and command.

    Nothing is written to the disk.

    Args:
        tree: Its composed tree.
        config_flags: Its flags that say where YAML files are found.

    Raises:
        UserError: a setting is wrong, or the model cannot be built.
    """
    typed = [text for text in typed_overrides(tree, "task") if not _is_left_out(text)]
    arguments = [*typed, *filter(_of_a_rank, typed_overrides(tree, "hydra"))]
    config = check_alone(tree, may_pack=False)
    check_device(config, partial(why_no_gpu, GpusLauncher(name="gpus")))
    said = [shell_line(["elman", *config_flags, *arguments])]
    if builds_a_model(config) and not MODES[config.mode].in_process:
        known: dict[str, int] = {}
        params = count_params(config, known)
        check_countable(config, known)
        said.insert(0, f"{config.model.name}, {params:,} parameters")
    if note := files_note(config):
        said.insert(-1, note)

    def run() -> int:
        print(*said, sep="\n", flush=True)
        return 0

    return run


def _is_left_out(text: str) -> bool:
    return text in UNTUNED or named_keys([text]) == {DRY_RUN}


def ranks_alone(
    tree: DictConfig, config_flags: Sequence[str], *, may_pack: bool = True
) -> Callable[[], int]:
    """Check a single command that asks for several GPUs; return what runs it.

    Args:
        tree: Its composed tree.
        config_flags: Its flags that say where YAML files are found.
        may_pack: Whether data that must be packed is packed now; else it is only checked.

    Raises:
        UserError: a setting is wrong, or the machine has too few GPUs.
    """
    named = named_keys(typed_overrides(tree, "task"))
    for key in sorted(named - {GPUS_PER_JOB, "launcher"} - _READ):
        if is_of_sweeps(key):
            raise UserError(f"{key}: not read by a single command; add -m or drop it")
    settings = sweep_settings(tree).launcher
    assert isinstance(settings, GpusLauncher)
    arguments = [
        *config_flags,
        *without_sweep_settings(typed_overrides(tree, "task")),
        *(text for text in typed_overrides(tree, "hydra") if _of_a_rank(text)),
    ]
    config = check_alone(tree, may_pack=may_pack)
    check_ranks(config, Where.LAUNCHER, settings.gpus_per_job)
    wanted = wants_gpu(config)
    checked_gpus(settings, wanted)

    def run() -> int:
        from elman.launchers.gpus.alone import run_alone

        return run_alone(arguments, settings, wanted)

    return run


def _of_a_rank(text: str) -> bool:
    return text.startswith(_OWN) or not OF_THE_SWEEP.match(text)
