"""Builds the real Kubernetes from its Go modules into a cache outside the checkout.

Release binaries are not reachable everywhere. The Go module proxy is; it has `k8s.io/kubernetes` as
source, with hashes in the checksum database. The directory of a build is named after all its
inputs: another version, flag or source gives another directory, and a finished build is reused.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

NEWEST = "v1.37.2"
# The others that Kubernetes supports, and the oldest that Linkwise promises. Not every patch has
# all its parts on the module proxy: these are the last of their versions that have.
_SELECTED = "LINKWISE_OLDER"  # which of the next, with commas; none: all
_SUPPORTED = ("v1.36.3", "v1.35.4", "v1.31.4")
_NAMED = {*filter(None, os.environ.get(_SELECTED, "").split(","))}
if not _NAMED.issubset(_SUPPORTED):
    raise ValueError(f"{_SELECTED} names {_NAMED}, of which only {_SUPPORTED} are built")
OLDER = tuple(each for each in _SUPPORTED if each in _NAMED or not _NAMED)
CONTAINERD = "v2.2.8"
KUBECONFORM = "v0.7.0"
HELM = "v4.3.1"
PROMETHEUS = "v0.316.0"  # of 3.16: the module is numbered so

PINNED = {
    "k8s.io/kubernetes": NEWEST,
    "github.com/containerd/containerd/v2": CONTAINERD,
    "github.com/yannh/kubeconform": KUBECONFORM,
    "helm.sh/helm/v4": HELM,
    "github.com/prometheus/prometheus": PROMETHEUS,
}

# The hashes of `k8s.io/kubernetes` itself; its go.sum has those of its dependencies.
SUMS = {
    "v1.37.2": "h1:A2VDEiObzkYqFTKhSsn0ZEb0RlLEXpHWj93gi2HqEwE=",
    "v1.36.3": "h1:qDQdoMiluAE2Eab6Fa52YV+WjiGz9mZFFoagEA6cI+o=",
    "v1.35.4": "h1:o/8dBC/pHVpYoGV4OAIytAlNPZbdYVTXJHoYvXC4qzM=",
    "v1.31.4": "h1:VQDX52gTQnq8C/jCo48AQuDsWbWMh9XXxhQRDYjgakw=",
}

GO_SOURCES = Path(__file__).parent / "go"
PARTS_OF_NEWEST = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
)
PARTS_OF_OLDER = ("kube-apiserver", "kube-scheduler")


class BuildError(Exception):
    """A program could not be built: names it, and ends with the Go tool's output."""


def cache_directory() -> Path:
    """`LINKWISE_CLUSTER_CACHE`, or `linkwise-cluster` in the user's cache directory."""
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("LINKWISE_CLUSTER_CACHE") or user_cache / "linkwise-cluster")


def kubernetes(version: str = NEWEST) -> Path:
    """Return the directory with the parts of *version*; build them if necessary.

    The newest version is complete, an older one has the two parts that Linkwise talks to. Raises
    `BuildError`. About 8 minutes on 2 cores for the newest, 2 for an older one.
    """
    newest = version == NEWEST
    source = GO_SOURCES / ("kubernetes.go" if newest else "older.go")
    parts = PARTS_OF_NEWEST if newest else PARTS_OF_OLDER

    def build(target: Path) -> None:
        _build_kubernetes(version, source, target / "all")
        for part in parts:
            (target / part).symlink_to("all")

    made_of = (version, SUMS[version], source.read_text(), *parts, _ldflags(version))
    return _cached(f"kubernetes-{version}", made_of, build)


def vendor_plugin() -> Path:
    """Return the directory with `vendor-plugin`, made of Kubernetes' own stub of a device plugin.
    About 20 seconds on 2 cores when the newest version is built."""
    return _made_of_newest("vendor-plugin", "vendor_plugin.go")


def filters() -> Path:
    """Return the directory with `filters`, which asks kube-scheduler's own filter plugins. About a
    minute on 2 cores when the newest version is built."""
    return _made_of_newest("filters", "filters.go")


def devices() -> Path:
    """Return the directory with `devices`, which asks kube-scheduler's own allocator of devices.
    About a minute on 2 cores when the newest version is built."""
    return _made_of_newest("devices", "devices.go")


def _made_of_newest(name: str, file: str) -> Path:
    source = GO_SOURCES / file

    def build(target: Path) -> None:
        _build_kubernetes(NEWEST, source, target / name)

    made_of = (NEWEST, SUMS[NEWEST], source.read_text(), _ldflags(NEWEST))
    return _cached(name, made_of, build)


def containerd() -> Path:
    """Return the directory with containerd, its shim for runc, and ctr."""
    programs = ("containerd", "containerd-shim-runc-v2", "ctr")
    packages = [f"github.com/containerd/containerd/v2/cmd/{name}@{CONTAINERD}" for name in programs]
    flags = ("-tags", "no_btrfs no_zfs no_devmapper")
    return _installed("containerd", packages, flags)


def kubeconform() -> Path:
    """Return the directory with kubeconform."""
    return _installed(
        "kubeconform", [f"github.com/yannh/kubeconform/cmd/kubeconform@{KUBECONFORM}"]
    )


def helm() -> Path:
    """Return the directory with helm."""
    return _installed("helm", [f"helm.sh/helm/v4/cmd/helm@{HELM}"])


def promtool() -> Path:
    """Return the directory with Prometheus' promtool, without the clients of clouds. Two minutes of
    processor time."""
    package = f"github.com/prometheus/prometheus/cmd/promtool@{PROMETHEUS}"
    return _installed("promtool", [package], ("-tags", "remove_all_sd"))


def of_module(name: str, module: str, version: str, sum_: str, package: str, *kept: str) -> Path:
    """Return the directory with the program *name*, built of a module's *package* as if in its
    repository, and beside it the module's folders *kept*. Raises `BuildError` if the module has
    another hash than *sum_*; its go.sum has those of its dependencies."""

    def build(target: Path) -> None:
        source = _downloaded(module, version, sum_, target)
        command = ["build", "-trimpath", "-ldflags", "-s -w", "-o", str(target / name), package]
        _go(command, source)
        for folder in kept:
            shutil.copytree(source / folder, target / folder)

    return _cached(f"{name}-{version}", (module, version, sum_, package, *kept), build)


def _installed(name: str, packages: Sequence[str], flags: Sequence[str] = ()) -> Path:
    def build(target: Path) -> None:
        command = ["install", "-trimpath", "-ldflags", "-s -w", *flags, *packages]
        _go(command, target, env={"GOBIN": str(target)})

    return _cached(name, (*packages, *flags), build)


def _build_kubernetes(version: str, source: Path, program: Path) -> None:
    """Build *source* as a module with exactly the dependencies of *version*.

    `k8s.io/kubernetes` cannot be installed by name, since it replaces its staging modules by
    folders. Here the same modules as published replace them.
    """
    upstream = _downloaded("k8s.io/kubernetes", version, SUMS[version], program.parent)
    with tempfile.TemporaryDirectory(prefix="module-", dir=program.parent) as scratch:
        module = Path(scratch)
        for name in ("go.mod", "go.sum"):
            shutil.copyfile(upstream / name, module / name)
        shutil.copyfile(source, module / "main.go")
        staged = "v0." + version.removeprefix("v1.")
        stands_on = json.loads(_go(["mod", "edit", "-json"], module))
        replaced = [entry["Old"]["Path"] for entry in stands_on["Replace"]]
        required = {entry["Path"] for entry in stands_on["Require"]}
        edits = [f"-require=k8s.io/kubernetes@{version}"]
        edits += [f"-replace={path}={path}@{staged}" for path in replaced]
        edits += [f"-require={path}@{staged}" for path in replaced if path in required]
        _go(["mod", "edit", "-module=linkwise.dev/cluster", *edits], module)
        _go(
            [
                "build",
                "-mod=mod",
                "-trimpath",
                "-ldflags",
                _ldflags(version),
                "-o",
                str(program),
                ".",
            ],
            module,
        )


def latest(module: str) -> str:
    """Return the newest release of a module on the proxy. Raises `BuildError`."""
    with tempfile.TemporaryDirectory() as nowhere:
        return str(
            json.loads(_go(["list", "-m", "-json", f"{module}@latest"], Path(nowhere)))["Version"]
        )


def _downloaded(module: str, version: str, sum_: str, directory: Path) -> Path:
    """Return the module's folder in Go's cache. *directory* is of no module."""
    download = json.loads(_go(["mod", "download", "-json", f"{module}@{version}"], directory))
    if download["Sum"] != sum_:
        raise BuildError(f"{module} {version}: hash {download['Sum']}, {sum_} expected")
    return Path(download["Dir"])


def _ldflags(version: str) -> str:
    """Return the linker flags. Without them every part reports v0.0.0-master and refuses newer
    versions."""
    major, minor, _ = version.removeprefix("v").split(".")
    package = "k8s.io/component-base/version"
    values = {"gitVersion": version, "gitMajor": major, "gitMinor": minor}
    return "-s -w " + " ".join(f"-X {package}.{name}={value}" for name, value in values.items())


def _go(arguments: Sequence[str], directory: Path, env: Mapping[str, str] | None = None) -> str:
    ended = subprocess.run(
        ["go", *arguments],
        cwd=directory,
        # Without HOME, Go has no build cache.
        env={
            "HOME": str(Path.home()),
            **os.environ,
            "CGO_ENABLED": "0",
            "GOFLAGS": "",
            **(env or {}),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode != 0:
        said = "\n".join(ended.stderr.splitlines()[-20:])
        raise BuildError(f"go {' '.join(arguments)}: exit {ended.returncode}:\n{said}")
    return ended.stdout


def _cached(name: str, made_of: Sequence[str], build: Callable[[Path], None]) -> Path:
    return cached(name, (*made_of, _go(["version"], Path.cwd())), build)


def cached(name: str, made_of: Sequence[str], build: Callable[[Path], None]) -> Path:
    """Return the directory named after *made_of*; *build* fills it if it does not exist."""
    key = hashlib.sha256("\0".join(made_of).encode()).hexdigest()
    target = cache_directory() / f"{name}-{key[:16]}"
    if target.is_dir():
        return target
    with _lock(cache_directory() / f"{name}.lock"):
        if target.is_dir():  # another process built it in the meantime
            return target
        for killed in cache_directory().glob(f".{name}-*"):
            shutil.rmtree(killed, ignore_errors=True)
        # Beside the target, so that the rename is atomic: a killed build leaves no half directory
        # under the final name.
        partial = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=cache_directory()))
        try:
            build(partial)
            partial.chmod(0o755)
            partial.rename(target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    return target


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
