"""Builds Linkwise's image as a user does, without a registry.

The base consists of Debian packages; `buildah build .` does the rest with the Containerfile. The
cache keeps both as OCI archives named after their inputs, so an image is built again only if one of
its files has changed. Layers are not compressed, because every node unpacks them on the same cores.
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
# The full name of the manifests' `linkwise:VERSION`.
NAME = f"docker.io/library/linkwise:{VERSION}"

_SUITE = "bookworm"
# usr-is-merged, because the alternative in bookworm brings 50 MB of perl.
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
# The archive of this run, so that all of the run uses the same one although files change. A sandbox
# could not build one, as it cannot reach the package index.
_OF_THIS_RUN = "LINKWISE_IMAGE"


def base_image() -> Path:
    """Return the OCI archive of a small Debian with Python 3.11; a build takes half a minute."""

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
    """Return the OCI archive of the checkout's image, `NAME`; a build takes up to a minute."""
    chosen = Path(os.environ.get(_OF_THIS_RUN) or "-")
    if chosen.is_file():
        return chosen
    with tempfile.TemporaryDirectory(prefix="linkwise-image-") as scratch:
        context = Path(scratch)
        # A copy, so that the key matches what is built although files change meanwhile.
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
    """Unpack the image's file system below *storage* for the duration of the block."""
    with _buildah(storage) as buildah:
        container = buildah("from", "--pull-never", f"oci-archive:{archive}")
        yield Path(buildah("mount", container))
        buildah("umount", container)


def _build_command() -> tuple[str, ...]:
    """Return a user's `buildah build` with what it needs to run as root without systemd."""
    return (
        "build",
        "--quiet",
        f"--build-arg=BASE=oci-archive:{base_image()}",
        "--timestamp=0",
        "--isolation=chroot",
        "--network=host",
        f"--volume={_CERTIFICATES}:{_CERTIFICATES}:ro",  # the certificates that this machine trusts
    )


def _context_files() -> list[Path]:
    """Return what `.dockerignore` lets through, and the two files that control the build."""
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
    """Each edit of the sources makes an image of 240 MB. Keep a few, and those in use."""
    changed = {path: path.stat().st_mtime for path in cache_directory().glob("linkwise-image-*/")}
    for path in sorted(changed, key=lambda path: changed[path])[:-_KEPT_IMAGES]:
        if changed[path] < time.time() - _LONGEST_RUN_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


def _archive(target: Path) -> Path:
    return target / "image.tar"


class _Buildah:
    """buildah with its own storage."""

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
    """Its storage keeps several copies of every layer, so remove it as soon as possible."""
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
