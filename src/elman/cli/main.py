"""The command ``elman``: compose, validate, dispatch on mode. Imports no torch.

Hydra runs in between. A user's mistake, whether Hydra or this program finds it, leaves
:func:`main` as one line, with exit status 2.
"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from elman.base import process_exit
from elman.base.errors import UserError
from elman.base.exit_status import ExitStatus, interrupted_status
from elman.base.phases import Phases, count_from_start_of_process
from elman.base.version import __version__
from elman.cli import flags

if TYPE_CHECKING:
    from pathlib import Path

    from omegaconf import DictConfig

    from elman.runs.prepared import PreparedRun


_FOLLOWER_SECONDS = 2.0
_INTERRUPTED = "elman: interrupted"


def main(argv: Sequence[str] | None = None, before_run: Callable[[], None] = lambda: None) -> int:
    """Run one command line and return its exit status.

    Args:
        argv: Arguments without the program's name; those of the process if None.
        before_run: Called after the job of this process is checked and imported; it returns when
            the job may run.
    """
    try:
        from elman.base.crash import threads_told
        from elman.base.output import lasting_output
        from elman.base.signals import ending
        from elman.base.typed_in import typed_here
    except KeyboardInterrupt:
        print(_INTERRUPTED, file=sys.stderr)
        return int(interrupted_status())
    with lasting_output(), ending(), threads_told(), typed_here():
        if argv is None:  # this process has no other status
            count_from_start_of_process()
            return process_exit.exit_with(_main(sys.argv[1:], before_run))
        return _main(argv, before_run)


def _main(argv: Sequence[str], before_run: Callable[[], None]) -> int:
    try:
        arguments = flags.parse(argv)
        if "--version" in arguments.flags:
            print(f"elman {__version__}")
            return int(ExitStatus.OK)
        if "--help" in arguments.flags:
            from elman.cli.help import help_text

            print(help_text(arguments.flags.get("--config-dir")), end="")
            return int(ExitStatus.OK)
        if "--wide" in arguments.flags:
            from elman.base.output import print_wide

            print_wide()
        _refuse_lost_folder()
        from elman.cli.checkpoint_model import with_checkpoint_model
        from elman.cli.resume_command import whole_command

        with whole_command(arguments) as whole:
            status = _run_hydra(with_checkpoint_model(whole), before_run)
        sys.stdout.flush()
        return status
    except UserError as error:
        return _refuse(error)
    except KeyboardInterrupt:
        if _follows() is None:
            print(_interrupted(), file=sys.stderr)
        return int(interrupted_status())
    except BrokenPipeError:
        # The reader of our output closed the pipe (elman --help | head): nobody is left to tell.
        return int(ExitStatus.FAILED)
    except Exception as error:
        return _failed_before_a_run(error, argv)


def _interrupted() -> str:
    """Return the line of a command that a signal ended at once: which one, and what is saved."""
    from elman.base.signals import last_received
    from elman.cli import session

    name = last_received()
    line = _INTERRUPTED + (f" ({name})" if name else "")
    job = session.current().job
    if job is not None and job.config.mode == "probe":
        return f"{line}; the same command measures only what is missing"
    if job is None or job.config.mode != "train":
        return line
    return f"{line} before the first step: nothing to save"


def run_task(tree: DictConfig) -> int:
    """Run the job that the callback prepared; Hydra calls this.

    It raises nothing but an interruption: Hydra would add its own lines to any other error.
    """
    from elman.cli import session

    state = session.current()
    try:
        status = state.ranks() if state.ranks else run_prepared(state.job or _prepared_inside(tree))
    except UserError as error:
        status = _refuse(error)
    state.status = ExitStatus(status) if status in set(ExitStatus) else status
    return status


def _prepared_inside(tree: DictConfig) -> PreparedRun:
    """Prepare a job that one of Hydra's own launchers runs: they do not call our callback."""
    from elman.runs.prepare import prepare_inside

    return prepare_inside(tree)


def run_prepared(job: PreparedRun) -> int:
    """Run one job in its mode, in its folder if it has one; return its exit status."""
    from elman.base.output import keep_going
    from elman.base.whole_file import give_room_back
    from elman.config.run_config import MODES

    if job.folder is None:
        return _run_mode(job)
    keep_going()
    try:
        return _run_mode(job)
    finally:
        give_room_back(job.folder / MODES[job.config.mode].result_file)


def _run_mode(job: PreparedRun) -> int:
    """Run one job in its mode; a new run that could not begin leaves no folder."""
    from importlib import import_module

    from elman.base.disk import is_disk_trouble, no_room
    from elman.base.named_path import path_at_fault
    from elman.cli import session
    from elman.devices.cpu import let_threads_sleep
    from elman.runs.folder import discard_folder

    let_threads_sleep()
    fresh = job.folder if not job.resumed else None
    job.phases.end("start")
    try:
        # The first place that imports torch.
        with _without_collecting():
            mode = import_module(f"elman.modes.{job.config.mode}")
            if job.config.mode == "train":
                mode.prepare_ahead(job.config)
        job.phases.end("imports")
        session.current().before_run()
        job.phases.end("wait")
        return int(mode.run(job))
    except UserError as error:
        if fresh is not None:
            discard_folder(fresh)
        return _refuse(error)
    except KeyboardInterrupt:
        if fresh is not None:
            discard_folder(fresh)
        raise
    except Exception as error:
        if job.folder is None and isinstance(error, BrokenPipeError):
            return int(ExitStatus.FAILED)  # elman mode=generate | head: nobody is left to tell
        fault = path_at_fault(error, session.current().argv)
        if fault is None and job.folder is not None and is_disk_trouble(error):
            fault = no_room(error, job.folder)
        if fault is None:
            return _report_internal(error, job.folder)
        if fresh is not None:
            discard_folder(fresh)
        return _refuse(fault)


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """Import torch without garbage collection, and exempt its objects from later collections.

    The import makes some hundred thousand objects that stay alive. Scanning them again and again
    takes a quarter of the import time.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _run_hydra(arguments: flags.Arguments, before_run: Callable[[], None]) -> int:
    """Let Hydra compose and dispatch; return the exit status that the session then holds."""
    phases = Phases.of_this_job()
    import hydra

    from elman.cli import session
    from elman.config.compose import CONFIG_MODULE, CONFIG_NAME, register_cells
    from elman.config.compose_once import compose_once
    from elman.config.mistakes import explain_mistakes

    folder = arguments.flags.get("--config-dir")
    if folder is not None and not os.path.isdir(folder):
        raise UserError(f"--config-dir {folder}: no such folder; name an existing one")
    register_cells()
    compose_once()
    _register_plugins()
    if "--cfg" in arguments.flags:
        _show_what_runs()
    flags_of_jobs, typed = tuple(arguments.search_flags), tuple(arguments.typed)
    state = session.begin(session.Session(flags_of_jobs, typed, before_run, main, run_prepared))
    state.phases = phases
    command = hydra.main(f"pkg://{CONFIG_MODULE}", CONFIG_NAME, version_base="1.3")(run_task)
    try:
        with (
            _hydra_surroundings(arguments),
            explain_mistakes(arguments.overrides, _compose(arguments)),
        ):
            command()
    except session.StopRun as stop:
        raise stop.cause from None
    except SystemExit as exited:
        return exited.code if isinstance(exited.code, int) else int(exited.code is not None)
    finally:
        if state.job is not None and state.job.lock is not None:
            state.job.lock.release()
    return int(state.status)


def _show_what_runs() -> None:
    """Make ``--cfg`` print the default minutes, not null, if no budget is set.

    Hydra prints the composed tree without calling us, so this replaces the one function of its
    own that it calls.
    """
    from hydra._internal.hydra import Hydra
    from omegaconf import open_dict, read_write

    from elman.sections.budget import BUDGETS, UNSAID_MINUTES

    plain = Hydra.get_sanitized_cfg

    def filled(self: Hydra, cfg: DictConfig, cfg_type: str) -> DictConfig:
        tree = plain(self, cfg, cfg_type)
        train = tree.get("train") if tree.get("mode") == "train" else None
        if train is None or any(train.get(key) is not None for key in (*BUDGETS, "resume")):
            return tree
        with read_write(tree), open_dict(tree):
            train.minutes = UNSAID_MINUTES
        return tree

    Hydra.get_sanitized_cfg = filled  # type: ignore[method-assign]


def _register_plugins() -> None:
    """Register our plugins: Hydra's own search does not look into an editable install."""
    from hydra.core.plugins import Plugins

    plugins = Plugins.instance()

    from elman.cli.sweep_command import run_sweep
    from hydra_plugins.elman_launcher import LAUNCHERS
    from hydra_plugins.elman_sweeper import ElmanSweeper

    for plugin in (*LAUNCHERS, ElmanSweeper):
        plugins.register(plugin)
    ElmanSweeper.run = run_sweep


@contextlib.contextmanager
def _hydra_surroundings(arguments: flags.Arguments) -> Iterator[None]:
    """Give Hydra its arguments and make it raise its errors instead of printing them."""
    argv, full = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [argv[0], *arguments.for_hydra]
    os.environ["HYDRA_FULL_ERROR"] = "1"
    # --info is logged, and logging would print a traceback for each line that `| head` cuts off.
    logging.raiseExceptions = "--info" not in arguments.flags
    if "--shell-completion" in arguments.flags:
        _order_completion_line()
    try:
        with warnings.catch_warnings(), _package_errors(arguments):
            # Two mistakes that Hydra only warns of.
            warnings.filterwarnings("error", message=r"\s*Running Hydra app with --multirun")
            warnings.filterwarnings("error", message=r"provider=hydra\.searchpath")
            yield
    finally:
        sys.argv = argv
        del os.environ["HYDRA_FULL_ERROR"]
        if full is not None:
            os.environ["HYDRA_FULL_ERROR"] = full


@contextlib.contextmanager
def _package_errors(arguments: flags.Arguments) -> Iterator[None]:
    """Reword what ``--cfg job -p typo`` prints before it exits."""
    if "--package" not in arguments.flags:
        yield
        return
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            yield
    except SystemExit:
        if "not found in config" not in said.getvalue():
            raise
        package = arguments.flags["--package"]
        raise UserError(
            f"--package {package}: no such group; `elman --cfg job` prints them"
        ) from None
    finally:
        if "not found in config" not in said.getvalue():
            sys.stderr.write(said.getvalue())


def _order_completion_line() -> None:
    """Move the flags of a line that is being completed to its front, as Hydra's parser wants."""
    line = os.environ.get("COMP_LINE", "")
    program, *words = line.split() or [""]
    try:
        ordered = " ".join([program, *flags.parse(words).for_hydra])
    except UserError:
        return
    os.environ["COMP_LINE"] = ordered + " " * line.endswith(" ")


def _compose(arguments: flags.Arguments) -> Callable[[Sequence[str]], DictConfig]:
    """Return a function that composes overrides from the YAML files that this command sees."""
    from elman.config.compose import compose_tree

    folder = arguments.flags.get("--config-dir")
    search = [f"hydra.searchpath=['file://{os.path.abspath(folder)}']"] if folder else []
    return lambda overrides: compose_tree([*overrides, *search])


def _refuse(error: UserError) -> int:
    from elman.base.output import note
    from elman.config.mistakes import one_line

    rank = _follows()
    if rank is not None:
        # Every rank refuses the same command. Rank 0 says so, and then torchrun ends all ranks.
        try:
            time.sleep(_FOLLOWER_SECONDS)
        except KeyboardInterrupt:
            return int(ExitStatus.USER_ERROR)
    who = "" if rank is None else f"rank {rank}: "
    note(f"error: {who}{one_line(str(error))}")
    return int(ExitStatus.USER_ERROR)


def _follows() -> int | None:
    """Return the number of a rank that another one leads; None for rank 0 and without ranks."""
    from elman.base.rank_place import rank_place

    try:
        place = rank_place()
    except UserError:
        return None
    return None if place.leads else place.rank


def _refuse_lost_folder() -> None:
    """Raise UserError if the current folder was removed, or is not there any more."""
    try:
        os.getcwd()
    except OSError as error:
        raise UserError(
            f"the current folder cannot be used ({error.strerror}): it was removed or its disk is "
            "gone; type cd to another folder, and the command again"
        ) from None


def _failed_before_a_run(error: Exception, argv: Sequence[str]) -> int:
    """Report an error from outside the modes; a full disk is not our fault and leaves no folder."""
    from elman.base.disk import is_disk_trouble, no_room
    from elman.base.named_path import path_at_fault
    from elman.cli import session
    from elman.runs.folder import discard_folder

    fault = path_at_fault(error, argv)
    if fault is None and not is_disk_trouble(error):
        return _report_internal(error, None)
    job = session.current().job
    if job is not None and job.folder is not None and not job.resumed:
        with contextlib.suppress(OSError):
            discard_folder(job.folder)
    if fault is not None:
        return _refuse(fault)
    assert is_disk_trouble(error)
    return _refuse(no_room(error, job.folder if job and job.folder else os.getcwd()))


def _report_internal(error: Exception, folder: Path | None) -> int:
    """Write the traceback where it can be read later, and say in one line where both are."""
    from elman.base import run_files
    from elman.base.crash import error_line_with_traceback, in_users_code
    from elman.base.output import note

    what = error_line_with_traceback(error, folder / run_files.LOG if folder is not None else None)
    kind = "crash" if in_users_code(error) else "internal error"
    note(f"{kind}: {what}")
    return int(ExitStatus.FAILED)
