"""Builds the archive of the machine on which it runs: PyInstaller does not cross-compile."""

import gzip
import platform
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

PROGRAM = "kubectl-linkwise"
LICENSE = Path(__file__).parents[1] / "LICENSE"
_START = Path(__file__).with_name("start.py")
# What Python calls a machine -> what krew calls it, which is Go's name.
_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


class ArchiveError(Exception):
    """An archive could not be made: names the step, and what its program said."""


def platform_of(system: str, machine: str) -> str:
    """Return `OS_ARCHITECTURE` as krew writes both. Raises ArchiveError."""
    architecture = _ARCHITECTURES.get(machine.lower())
    if system not in ("Linux", "Darwin") or architecture is None:
        raise ArchiveError(
            f"{system} on {machine}: expected Linux or Darwin on {[*_ARCHITECTURES]}"
        )
    return f"{system.lower()}_{architecture}"


def build(directory: Path) -> Path:
    """Write the archive into *directory*, and return its path. The program in it has run once.

    Raises ArchiveError.
    """
    archive = directory / f"{PROGRAM}_{platform_of(platform.system(), platform.machine())}.tar.gz"
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        pack(_freeze(Path(scratch)), archive)
        # As krew unpacks it: PyInstaller warns of libraries that are files instead of links.
        unpacked = Path(scratch) / "unpacked"
        with tarfile.open(archive) as tar:
            tar.extractall(unpacked, filter="data")
        _run("start it", str(unpacked / PROGRAM), "--version")
    return archive


def _freeze(scratch: Path) -> Path:
    places = (f"--distpath={scratch}", f"--workpath={scratch / 'work'}", f"--specpath={scratch}")
    # The package's metadata has the version, and its data the recorded machines.
    content = (
        f"--name={PROGRAM}",
        "--onedir",
        "--copy-metadata=linkwise",
        "--collect-data=linkwise",
    )
    _run(
        "freeze it",
        *(sys.executable, "-m", "PyInstaller", "--log-level=ERROR", *places, *content, str(_START)),
    )
    return scratch / PROGRAM


def pack(frozen: Path, archive: Path) -> None:
    """Pack *frozen* and the license. krew unpacks no symbolic links, so files replace them."""
    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", dereference=True) as tar,
    ):
        for path in (LICENSE, *sorted(frozen.iterdir())):
            tar.add(path, path.name, filter=_of_root)


def _of_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return *member* without the user and the time of the build."""
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def _run(step: str, *command: str) -> None:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise ArchiveError(f"{step}: {command[0]}: exit {ended.returncode}: {ended.stderr}")
