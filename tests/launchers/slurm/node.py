"""A SLURM of one node with two pretend GPUs, all of it in one folder (Debian's packages, root)."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

PACKAGES = ("slurm-wlm", "munge")
# CPUs as if the machine had four (config_overrides): GPUs alone must be what jobs wait for.
_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}
SlurmctldPort={port}
SlurmdPort={second_port}
AuthType=auth/munge
AuthInfo=socket={munge}/socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
JobAcctGatherType=jobacct_gather/none
GresTypes=gpu
ReturnToService=2
SlurmdParameters=config_overrides
KillWait=2
NodeName={host} CPUs=4 RealMemory=1000 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmNode:
    """Starts the daemons in its context; the environment names their configuration meanwhile."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._daemons = folder, []
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf")}

    def __enter__(self) -> SlurmNode:
        folder, host = self._folder, socket.gethostname().split(".")[0]
        for name in ("state", "spool", "munge"):
            (folder / name).mkdir()
        for number in (0, 1):
            os.mknod(folder / f"gpu{number}", 0o666 | 0o020000, os.makedev(1, 3))
        ports = _free_ports()
        text = _CONFIGURATION.format(
            folder=folder, host=host, port=ports[0], second_port=ports[1], munge=folder / "munge"
        )
        (folder / "slurm.conf").write_text(text)
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-1]\n")
        try:
            self._start_munge()
            self._start("slurmctld", "-D")
            self._start("slurmd", "-D", "-N", host)
            self._wait_until_idle()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stop()

    def _stop(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def run(self, *command: str) -> str:
        """Run one of SLURM's commands and return its output."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    def _start_munge(self) -> None:
        place = self._folder / "munge"
        key = place / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        # Every user must get through to the socket, and munged insists on safe folders above it.
        place.chmod(0o755)
        files = {
            "key-file": key,
            "pid-file": place / "pid",
            "log-file": place / "log",
            "seed-file": place / "seed",
            "socket": place / "socket",
        }
        options = [f"--{name}={path}" for name, path in files.items()]
        self._start("munged", "--foreground", "--force", *options)

    def _start(self, name: str, *arguments: str) -> None:
        program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") or name
        with (self._folder / f"{name}.out").open("w") as output:
            started = subprocess.Popen(
                [program, *arguments], env=self.environment, stdout=output, stderr=output
            )
        self._daemons.append(started)

    def _wait_until_idle(self) -> None:
        deadline = time.monotonic() + 180
        while "idle" not in self._state():
            if time.monotonic() > deadline or any(one.poll() for one in self._daemons):
                texts = [path.read_text()[-2000:] for path in self._folder.glob("*.[lo][ou][gt]")]
                raise RuntimeError("SLURM did not come up:\n" + "\n".join(texts))
            time.sleep(0.2)

    def _state(self) -> str:
        command = ["sinfo", "--noheader", "--format=%t"]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True).stdout


def _free_ports() -> list[int]:
    """Return two ports that nothing listens on."""
    open_sockets = [socket.socket() for _ in range(2)]
    for one in open_sockets:
        one.bind(("", 0))
    found = [one.getsockname()[1] for one in open_sockets]
    for one in open_sockets:
        one.close()
    return found
