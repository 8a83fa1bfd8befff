"""Lets a process fork those that it starts: each need not import again what it has.

A launcher forks its jobs so, and ``tests/stubs/stub_server.py`` whole commands.

A process keeps all that is between the two: its parent, group, descriptors, folder, environment,
signals and exit status. What the launcher's modules remember of the launcher is forgotten.
"""

import atexit
import gc
import logging
import os
import random
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NoReturn

_WORKER = "elman.launchers.gpus.worker"
_FILTERS = list(warnings.filters)
_execute = subprocess.Popen._execute_child
_kept: list[Any] = []


def fork_jobs() -> None:
    """Let this process fork the jobs that it starts from its main thread."""
    subprocess.Popen._execute_child = _forked  # type: ignore[assignment]


def _is_job(arguments: Any, environment: Any) -> bool:
    if not isinstance(arguments, list) or threading.current_thread() is not threading.main_thread():
        return False
    program, *rest = [text for text in arguments if text != "-u"]
    job = rest[:2] == ["-m", _WORKER] or (rest[:2] == ["-m", "elman"] and "hydra.mode=RUN" in rest)
    return program == sys.executable and job and "RANK" not in (environment or os.environ)


def _forked(popen: Any, *given: Any) -> None:
    """Fork in place of what ``Popen`` does; ``given`` are the arguments of its own method."""
    args, passed, cwd, env, pipes = given[0], *given[4:7], given[10:16]
    if not _is_job(args, env):
        _execute(popen, *given)
        return
    popen.pid = fork(args, passed, cwd, env, (pipes[0], pipes[3], pipes[5]), *given[-2:])
    popen._child_created = True
    popen._close_pipe_fds(*pipes)


def fork(
    args: Sequence[str],
    passed: Sequence[int],
    cwd: Any,
    env: Any,
    streams: Sequence[int],
    new_session: bool = False,
    group: int = -1,
) -> int:
    """Return the id of a fork that becomes what these arguments would start."""
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            _become(args, passed, cwd, env, streams, new_session, group)
            status = _run(args)
        except BaseException:
            traceback.print_exc()
        _leave(status)
    return pid


def _become(
    args: Sequence[str],
    passed: Sequence[int],
    cwd: Any,
    env: Any,
    streams: Sequence[int],
    new_session: bool,
    group: int,
) -> None:
    """Take the place of a process that was started by these arguments."""
    atexit._clear()
    if new_session:
        os.setsid()
    elif group >= 0:
        os.setpgid(0, group)
    _forget()
    for target, source in enumerate(streams):
        if source >= 0:
            os.dup2(source, target)
    _close_all_but({0, 1, 2, *passed})
    if cwd is not None:
        os.chdir(cwd)
    if env is not None:
        new = dict(env)
        os.environ.clear()
        os.environ.update(new)
    if "STUB_FORKS" not in os.environ:
        subprocess.Popen._execute_child = _execute  # type: ignore[method-assign]
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            ours = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, ours)
    _kept.extend((sys.stdin, sys.stdout, sys.stderr))  # a lost one would write what it holds
    unbuffered = "-u" in args or "PYTHONUNBUFFERED" in os.environ
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stdout.reconfigure(write_through=unbuffered)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", errors="backslashreplace", closefd=False)
    sys.stderr.reconfigure(line_buffering=True)
    gc.freeze()


def _forget() -> None:
    """Forget what modules remember of the process that started this one."""
    from elman.base import signals
    from elman.launchers import start_order

    for name, module in list(sys.modules.items()):
        if name.startswith("elman.devices."):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()
    signals.received.clear()
    start_order._LOCKS.clear()
    if "elman.cli.session" in sys.modules:
        _forget_command()
    for logger in (logging.root, *map(logging.getLogger, list(logging.root.manager.loggerDict))):
        _kept.extend(logger.handlers)
        logger.handlers.clear()
        logger.setLevel(logging.WARNING if logger is logging.root else logging.NOTSET)
        logger.disabled = False
    logging.raiseExceptions = True
    warnings.filters[:] = _FILTERS
    warnings._filters_mutated()
    sys.excepthook, threading.excepthook = sys.__excepthook__, threading.__excepthook__
    random.seed()


def _forget_command() -> None:
    from hydra.core.global_hydra import GlobalHydra
    from hydra.core.hydra_config import HydraConfig

    from elman.cli import session

    GlobalHydra.instance().clear()
    HydraConfig.instance().cfg = None
    session.begin(session.Session())


def _close_all_but(kept: set[int]) -> None:
    numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    for number in set(numbers) - kept:
        with suppress(OSError):
            os.close(number)


def _run(args: Sequence[str]) -> int:
    module, words = _module(args)
    sys.argv, sys.orig_argv = words, list(args)
    if module == _WORKER:
        del sys.modules[module]  # its launcher knows its name; Python warns of that
    try:
        if module is None:
            sys.path[0] = os.path.dirname(words[0])
            runpy.run_path(words[0], run_name="__main__")
        else:
            sys.path[0] = os.getcwd()
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
            return 1
        return ended.code or 0
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _module(args: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the module that Python's arguments name, None for a script, and ``sys.argv``."""
    words = [text for text in args[1:] if text != "-u"]
    return (words[1], words[1:]) if words[0] == "-m" else (None, words)


def _leave(status: int) -> NoReturn:
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
