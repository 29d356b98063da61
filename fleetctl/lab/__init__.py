"""Real nodes on this machine: containers with systemd, sshd, apt and Slurm, to try fleetctl on.

from fleetctl import lab
lab.up(nodes=4, racks=2, release="bookworm", directory=Path("lab"))
lab.fault("gpu002", "reboot-never-returns", directory=Path("lab"))
lab.down(Path("lab"))
"""

from fleetctl.lab.verbs import down, fault, ssh_argv, status, up

__all__ = ["down", "fault", "ssh_argv", "status", "up"]
