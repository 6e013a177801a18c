"""Linkwise's image, built as a user builds it, where no registry can be reached.

The base is made of Debian packages, everything else is what `buildah build .` does with the
Containerfile. Both are kept as OCI archives in the cache, named after what they are made of, so
that an image is built again only when a file in it has changed. Layers are not compressed:
every node unpacks them, on the same cores.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.support.host import sandbox
from tests.cluster.support.programs.binaries import BuildError, cache_directory, cached

CHECKOUT = Path(__file__).parents[4]
VERSION: str = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"]
# What a kubelet makes of the manifests' `linkwise:VERSION`.
NAME = f"docker.io/library/linkwise:{VERSION}"

_SUITE = "bookworm"
# usr-is-merged, because the other way to have that in bookworm brings 50 MB of perl.
_PACKAGES = ("usr-is-merged", "python3", "python3-venv", "ca-certificates")
_BASE_OPTIONS = (
    "--variant=minbase",
    "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/man/*",
)
_CERTIFICATES = "/etc/ssl/certs"
_KEPT_IMAGES = 4
_LONGEST_RUN_SECONDS = 2 * 3600
# Set to the archive that a run uses, so that all of it uses the same one, whatever is edited
# meanwhile; in a sandbox there would be no way to the package index anyway.
_OF_THIS_RUN = "LINKWISE_IMAGE"


def base_image() -> Path:
    """Return the OCI archive of a small Debian with Python 3.11; half a minute where it is new."""

    def build(target: Path) -> None:
        _needs_network()
        packed = target / "base.tar"
        include = f"--include={','.join(_PACKAGES)}"
        _run(["mmdebstrap", *_BASE_OPTIONS, include, _SUITE, str(packed)], SOURCE_DATE_EPOCH="0")
        with _buildah(target / "storage") as buildah:
            container = buildah("from", "scratch")
            buildah("add", "--quiet", container, str(packed), "/")
            buildah("config", "--cmd", '["/bin/sh"]', container)
            archive = f"oci-archive:{_archive(target)}"
            options = ("--quiet", "--timestamp=0", "--disable-compression")
            buildah("commit", *options, container, archive)
        packed.unlink()

    return _archive(cached("base-image", (_SUITE, *_PACKAGES, *_BASE_OPTIONS), build))


def linkwise_image() -> Path:
    """Return the OCI archive of the checkout's image, `NAME`; under a minute where it is new."""
    chosen = Path(os.environ.get(_OF_THIS_RUN) or "-")
    if chosen.is_file():
        return chosen
    with tempfile.TemporaryDirectory(prefix="linkwise-image-") as scratch:
        context = Path(scratch)
        # A copy, so that what is built is what the key names while somebody goes on editing.
        made_of = [_copied(path, context) for path in _context_files()]

        def build(target: Path) -> None:
            _needs_network()
            with _buildah(target / "storage") as buildah:
                archive = f"oci-archive:{_archive(target)}:{NAME}"
                buildah(*_build_command(), f"--tag={archive}", str(context))

        target = cached("linkwise-image", (str(base_image()), *_build_command(), *made_of), build)
    target.touch()
    _forget_old_images()
    os.environ[_OF_THIS_RUN] = str(_archive(target))
    return _archive(target)


@contextmanager
def unpacked(archive: Path, storage: Path) -> Iterator[Path]:
    """The image's file system as a directory below *storage*, for as long as the block lasts."""
    with _buildah(storage) as buildah:
        container = buildah("from", "--pull-never", f"oci-archive:{archive}")
        yield Path(buildah("mount", container))
        buildah("umount", container)


def _build_command() -> tuple[str, ...]:
    """A user's `buildah build`, and what it takes to run it as root without systemd."""
    return (
        "build",
        "--quiet",
        f"--build-arg=BASE=oci-archive:{base_image()}",
        "--timestamp=0",
        "--isolation=chroot",
        "--network=host",
        f"--volume={_CERTIFICATES}:{_CERTIFICATES}:ro",  # whatever this machine trusts
    )


def _context_files() -> list[Path]:
    """What `.dockerignore` lets through, and the two files that say what is done with it."""
    lines = (CHECKOUT / ".dockerignore").read_text().splitlines()
    found = {CHECKOUT / "Containerfile", CHECKOUT / ".dockerignore"}
    for pattern in (line.removeprefix("!") for line in lines if line.startswith("!")):
        for path in CHECKOUT.glob(pattern):
            found.update(path.rglob("*") if path.is_dir() else [path])
    return sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)


def _copied(path: Path, context: Path) -> str:
    relative = path.relative_to(CHECKOUT)
    copy = context / relative
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, copy)
    return f"{relative} {copy.stat().st_mode:o} {hashlib.sha256(copy.read_bytes()).hexdigest()}"


def _forget_old_images() -> None:
    """Each edit of the sources makes an image of 240 MB; a few are enough, and those in use."""
    changed = {path: path.stat().st_mtime for path in cache_directory().glob("linkwise-image-*/")}
    for path in sorted(changed, key=lambda path: changed[path])[:-_KEPT_IMAGES]:
        if changed[path] < time.time() - _LONGEST_RUN_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


def _archive(target: Path) -> Path:
    return target / "image.tar"


class _Buildah:
    """buildah with a storage of its own."""

    def __init__(self, storage: Path) -> None:
        self._options = (
            "buildah",
            f"--root={storage / 'root'}",
            f"--runroot={storage / 'run'}",
            "--storage-driver=vfs",
        )

    def __call__(self, *arguments: str) -> str:
        return _run([*self._options, *arguments]).strip()


@contextmanager
def _buildah(storage: Path) -> Iterator[_Buildah]:
    """It keeps every layer whole, several times: its storage goes as soon as it is not needed."""
    try:
        yield _Buildah(storage)
    finally:
        shutil.rmtree(storage, ignore_errors=True)


def _needs_network() -> None:
    if sandbox.directory() is not None:
        raise BuildError(
            "this image is not in the cache, and a sandbox has no network to build it: "
            "run `python -m tests.cluster build` before"
        )


def _run(command: Sequence[str], **env: str) -> str:
    ended = subprocess.run(
        command, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    if ended.returncode != 0:
        said = "\n".join(ended.stderr.splitlines()[-20:])
        raise BuildError(f"{' '.join(command)}: exit {ended.returncode}:\n{said}")
    return ended.stdout
