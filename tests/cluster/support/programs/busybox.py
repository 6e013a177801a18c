"""The two images of every node: one holds a pod's namespaces, one is a workload with a shell.

Both are the machine's static busybox in an OCI archive. They need no registry and no builder, and
importing them takes a tenth of a second.
"""

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PAUSE = "localhost/pause:test"
WORKLOAD = "localhost/workload:test"
_FOR_EVER = ["/bin/sleep", "2147483647"]
_COMMANDS = {PAUSE: _FOR_EVER, WORKLOAD: _FOR_EVER}
_ACCOUNTS = "root:x:0:0::/:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"
# Debian's busybox lacks it.
_PRINTENV = """\
#!/bin/sh
if [ $# = 0 ]; then exec env; fi
eval "if [ -n \\"\\${$1+set}\\" ]; then echo \\"\\$$1\\"; else exit 1; fi"
"""
_OCI = "application/vnd.oci.image"


def write_images(archive: Path, commands: Mapping[str, Sequence[str]] = _COMMANDS) -> None:
    """Write both images into *archive*, in the format of `ctr images import`; or others, each name
    with its command."""
    write_archive(archive, _layer(), commands)


def write_archive(archive: Path, layer: bytes, commands: Mapping[str, Sequence[str]]) -> None:
    """Write images with this one *layer*, a tar: each name with its command."""
    blobs = {_digest(layer): layer}
    entries = []
    for name, command in commands.items():
        config = _json(_config(layer, command))
        manifest = _json(
            {
                "schemaVersion": 2,
                "mediaType": f"{_OCI}.manifest.v1+json",
                "config": _described("config.v1+json", config),
                "layers": [_described("layer.v1.tar", layer)],
            }
        )
        blobs.update({_digest(blob): blob for blob in (config, manifest)})
        entry = _described("manifest.v1+json", manifest)
        entries.append({**entry, "annotations": {"io.containerd.image.name": name}})
    index = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": entries}
    _write_tar(
        archive,
        {
            "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
            "index.json": _json(index),
            **{f"blobs/{digest.replace(':', '/')}": blob for digest, blob in blobs.items()},
        },
    )


def layer_of(programs: Mapping[str, Path]) -> bytes:
    """Return a layer with these *programs* in /bin, and the directory /tmp."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for directory, mode in (("bin", 0o755), ("tmp", 0o1777)):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        for name, path in programs.items():
            _add_file(tar, f"bin/{name}", path.read_bytes(), mode=0o755)
    return target.getvalue()


def _layer() -> bytes:
    busybox = shutil.which("busybox")
    assert busybox, "busybox is not installed; `python -m tests.cluster` says so first"
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as tar:
        for directory, mode in (("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777)):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, mode
            tar.addfile(entry)
        _add_file(tar, "bin/busybox", Path(busybox).read_bytes(), mode=0o755)
        _add_file(tar, "bin/printenv", _PRINTENV.encode(), mode=0o755)
        _add_file(tar, "etc/passwd", _ACCOUNTS.encode())
        for applet in listed.stdout.split():
            if applet != "busybox":
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)
    return target.getvalue()


def _config(layer: bytes, command: Sequence[str]) -> dict[str, Any]:
    return {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": command, "Env": ["PATH=/bin"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }


def _write_tar(path: Path, files: Mapping[str, bytes]) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            _add_file(tar, name, content)


def _add_file(tar: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    tar.addfile(entry, io.BytesIO(content))


def _described(kind: str, blob: bytes) -> dict[str, Any]:
    return {"mediaType": f"{_OCI}.{kind}", "digest": _digest(blob), "size": len(blob)}


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
