"""What is installed in a node's image from the lab's repository: a fleet that was healthy before anybody came."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from fleetctl.lab.images import digest_of, node_image
from fleetctl.lab.packages.table import kernel_slug
from fleetctl.lab.repository import KEY_FILE, open_repository

if TYPE_CHECKING:
    from collections.abc import Callable

    from fleetctl.lab.engine import Engine
    from fleetctl.lab.layout import Lab

DRIVER_VERSION: Final = "570.195.03"
_DRIVER: Final = "nvidia-open-570 nvidia-fabricmanager-570"
_HERE: Final = Path(__file__).parent


def driver_image(engine: Engine, lab: Lab, say: Callable[[str], None]) -> str:
    """Return the image of a node with DRIVER_VERSION installed and held, made when it is not there."""
    repository = open_repository(lab.repository)
    contents = digest_of(_HERE / "packages", _HERE / "repository.py") + lab.kernel
    source = repository.source("file:///srv/packages", f"/srv/packages/{KEY_FILE}")
    script = _install_script(source, kernel_slug(lab.kernel))
    return node_image(engine, lab.release, repository.public, contents, script, say)


def _install_script(source: str, kernel: str) -> str:
    where = "/etc/apt/sources.list.d/build.sources"
    pin = "/etc/apt/preferences.d/build.pref"
    install = "apt-get -qq install --yes --no-install-recommends"
    return "\n".join(
        (
            f"cat > {where} <<'SOURCE'\n{source}SOURCE",
            "apt-get -qq update",
            f"{install} lab-gpu-hardware linux-image-{kernel} linux-headers-{kernel} dkms",
            # Some dependencies only say ">=": without a pin they come from the newest branch on offer.
            f"printf 'Package: *nvidia*\\nPin: version {DRIVER_VERSION}-*\\nPin-Priority: 1001\\n' > {pin}",
            f"{install} {_DRIVER}",
            # The closure is held as an admin would leave it: whatever carries the driver's version.
            "dpkg-query --show > /tmp/packages",
            f"awk '$2 ~ /{DRIVER_VERSION}/ {{print $1}}' /tmp/packages > /tmp/held",
            "xargs --no-run-if-empty apt-mark hold < /tmp/held",
            "rm /tmp/packages /tmp/held",
            f"rm {where} {pin}",
        )
    )
