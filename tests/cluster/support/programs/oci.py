"""Reads what an OCI image's archive says about the image."""

import tarfile
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


class Descriptor(msgspec.Struct):
    digest: str
    size: int
    annotations: dict[str, str] = {}


class Index(msgspec.Struct):
    manifests: list[Descriptor]


class ImageManifest(msgspec.Struct):
    config: Descriptor
    layers: list[Descriptor]


class ImageRun(msgspec.Struct, rename="pascal"):
    user: str = ""
    env: list[str] = []
    cmd: list[str] = []


class Config(msgspec.Struct):
    config: ImageRun


def image_digest(archive: Path) -> str:
    """Return the digest of its manifest: equal for equal images."""
    return _index(archive).digest


def image_size(archive: Path) -> int:
    """Return the bytes of its layers, which these archives do not compress."""
    return sum(layer.size for layer in _manifest(archive).layers)


def how_to_run(archive: Path) -> ImageRun:
    return _blob(archive, _manifest(archive).config.digest, Config).config


def _manifest(archive: Path) -> ImageManifest:
    return _blob(archive, image_digest(archive), ImageManifest)


def _index(archive: Path) -> Descriptor:
    (only,) = _read(archive, "index.json", Index).manifests
    return only


def _blob(archive: Path, digest: str, kind: type[T]) -> T:
    return _read(archive, f"blobs/{digest.replace(':', '/')}", kind)


def _read(archive: Path, member: str, kind: type[T]) -> T:
    with tarfile.open(archive) as tar:
        file = tar.extractfile(member)
        assert file is not None, member
        return msgspec.json.decode(file.read(), type=kind)
