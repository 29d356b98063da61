"""Slurm's configuration for one lab, the same file on every machine as slurm.conf wants it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetctl.lab.layout import GPUS_PER_NODE

if TYPE_CHECKING:
    from fleetctl.lab.layout import Lab

DEBUG_NODES = 2
PARTITIONS = ("train", "debug")


def slurm_conf(lab: Lab) -> str:
    """Return slurm.conf.

    A rebooted node comes back DOWN: Slurm 22.05 says "unexpectedly rebooted" after any reboot; 24.11 does not, there
    only its silence counts, and that is noticed after some 15 s (two rounds of MessageTimeout, measured), not after
    SlurmdTimeout. With the fault reboot-slow 20 both do the same.
    """
    nodes = "\n".join(
        f"NodeName={node.name} NodeAddr={node.address} CPUs=16 RealMemory=64000 Gres=gpu:h100:{GPUS_PER_NODE}"
        f" Features={node.rack},h100 State=UNKNOWN"
        for node in lab.nodes
    )
    every = ",".join(node.name for node in lab.nodes)
    first = ",".join(node.name for node in lab.nodes[:DEBUG_NODES])
    return f"""\
ClusterName=lab
SlurmctldHost={lab.head.name}({lab.head.address})
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
SlurmctldDebug=info
SlurmdDebug=info

SlurmdTimeout=5
MessageTimeout=5
ReturnToService=1
RebootProgram="/usr/bin/systemctl reboot"
KillWait=5
MailProg=/bin/true

# Containers share the host's cgroups and processors: Slurm counts what is written here and binds nothing.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
PropagateResourceLimits=NONE

SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=5,bf_interval=5,batch_sched_delay=1
GresTypes=gpu

AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={lab.head.address}
AccountingStorageTRES=gres/gpu

{nodes}
PartitionName=train Nodes={every} Default=YES MaxTime=INFINITE State=UP
PartitionName=debug Nodes={first} MaxTime=60 State=UP
"""


def slurmdbd_conf() -> str:
    """Return slurmdbd.conf: the database knows the slurm user by its socket, so there is no password."""
    return """\
AuthType=auth/munge
DbdHost=localhost
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/run/slurmdbd.pid
"""


def cgroup_conf() -> str:
    """Return cgroup.conf for Slurm 24.11, which otherwise insists on a cgroup layout that a container may not have."""
    return "CgroupPlugin=disabled\n"
