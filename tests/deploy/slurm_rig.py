"""A cluster of Slurm on loopback: one controller, one node with two processors."""

import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

START_S = 60
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue")
SETTINGS = """
ClusterName=rig
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=2,sched_min_interval=0,batch_sched_delay=0
MailProg=/bin/true
ReturnToService=2
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing():
    """Return why there can be no cluster here, or ``None``."""
    path = f"{os.environ['PATH']}:/usr/sbin"
    absent = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    if absent:
        return f"{', '.join(absent)} not installed; apt-get install slurm-wlm munge"
    return "Slurm's daemons start jobs as others, as only root may" if os.geteuid() else None


class Cluster:
    """A running cluster, and what one would type at it."""

    def __init__(self, settings):
        self._settings = settings

    def __call__(self, *command, environment=None):
        """Return what a command of Slurm prints."""
        done = subprocess.run(
            command, env=_environment(self._settings) | (environment or {}),
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def jobs(self, number):
        """Return what Slurm says of the jobs of a number: a dictionary each."""
        said = self("scontrol", "--oneliner", "show", "job", number)
        return [
            dict(word.partition("=")[::2] for word in line.split()) for line in said.splitlines()
        ]

    def wait(self, number, holds, timeout_s=90):
        """Wait until something holds of all jobs of a number; return them."""
        deadline = time.monotonic() + timeout_s
        while True:
            jobs = self.jobs(number)
            if all(map(holds, jobs)):
                return jobs
            assert time.monotonic() < deadline, jobs
            time.sleep(0.1)


def _free_ports(count):
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@contextmanager
def cluster(folder):
    """Start a cluster whose files are in a folder; yield a `Cluster`."""
    host = socket.gethostname().partition(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir()
    # The socket's folder has to be known as safe: only root may write to it.
    folder.chmod(0o755)
    settings = folder / "slurm.conf"
    settings.write_text(SETTINGS.format(host=host, folder=folder, ports=_free_ports(2)))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(64))
    key.chmod(0o400)
    environment = _environment(settings)
    munge = [
        "munged", "--force", "--foreground", f"--key-file={key}",
        f"--socket={folder}/munge.socket", f"--pid-file={folder}/munge.pid",
        f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed",
    ]  # fmt: skip
    with ExitStack() as stack:
        for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D", "-N", host]):
            log = stack.enter_context((folder / f"{command[0]}.out").open("wb"))
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
            stack.callback(_end, process)
            if command is munge:
                _wait_for(folder / "munge.socket", process)
        made = Cluster(settings)
        deadline = time.monotonic() + START_S
        while "idle" not in _nodes(environment):
            assert time.monotonic() < deadline, (folder / "slurmctld.log").read_text()[-2000:]
            time.sleep(0.1)
        yield made
        for line in made("squeue", "--noheader", "--format=%A").splitlines():
            made("scancel", "--signal=KILL", "--full", line)
            made("scancel", line)


def _environment(settings):
    """Return what commands and daemons of the cluster are told, and jobs by them."""
    told = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "COV_"))}
    return told | {"SLURM_CONF": str(settings), "PATH": f"{os.environ['PATH']}:/usr/sbin"}


def _nodes(environment):
    command = ["sinfo", "--noheader", "--format=%t"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout


def _wait_for(path, process):
    deadline = time.monotonic() + START_S
    while not Path(path).exists():
        assert process.poll() is None, "munged did not start"
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _end(process):
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
