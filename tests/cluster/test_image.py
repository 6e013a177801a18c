"""The image in use: as user nobody, on a read-only root, with nothing superfluous in it."""

import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

import pytest

from tests.cluster.support.host.processes import LoggedProcess
from tests.cluster.support.host.waiting import wait_for
from tests.cluster.support.programs.images import VERSION, base_image, linkwise_image, unpacked
from tests.cluster.support.programs.oci import how_to_run, image_size

MOST_BYTES_OVER_BASE = 150_000_000
PROGRAMS = ("linkwise", "linkwise-plugin", "linkwise-extender")
NOBODY_LISTENS = "http://127.0.0.1:1"
# What a container runtime does, as far as the programs notice.
CONTAIN = """
set -e
root=$1 user=$2
shift 2
mount --bind "$root" "$root"
mount -o remount,ro,bind "$root"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
exec chroot --userspec="$user" "$root" /usr/bin/env -i "$@"
"""


@dataclass(frozen=True)
class Image:
    archive: Path
    root: Path

    def contained(self, *command: str) -> list[str]:
        """Return a command that runs *command* with the image's user and environment, and no
        writable file."""
        run = how_to_run(self.archive)
        inside = [str(self.root), run.user, *run.env, *command]
        return ["unshare", "--mount", "sh", "-c", CONTAIN, "contain", *inside]

    def output(self, *command: str) -> str:
        ended = subprocess.run(
            self.contained(*command), capture_output=True, text=True, check=False, timeout=60
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout


@pytest.fixture(scope="module")
def image(run_directory: Path) -> Iterator[Image]:
    archive = linkwise_image()
    with unpacked(archive, run_directory / "image") as root:
        yield Image(archive, root)


@dataclass
class Served:
    """A program of the image that serves HTTP here, at a port that it chooses."""

    process: LoggedProcess

    @property
    def port(self) -> int | None:
        said = self.process.log.read_text()
        found = re.search(r"(?:HTTP on port |views on http://\S+:)(\d+)$", said, re.MULTILINE)
        return int(found[1]) if found else None

    def call(self, verb: str, body: bytes) -> tuple[int, str]:
        """Call it as kube-scheduler does."""
        said = self.process.log.read_text()
        found = re.search(r"kube-scheduler on http://\S+:(\d+)$", said, re.MULTILINE)
        assert found, said
        return self._ask(int(found[1]), f"/{verb}", body)

    def ask(self, path: str) -> tuple[int, str]:
        return self._ask(self.port or 0, path, None)

    def _ask(self, port: int, path: str, body: bytes | None) -> tuple[int, str]:
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read().decode()

    def status(self, field: str) -> str:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(field))


@contextmanager
def serving(image: Image, logs: Path, *command: str) -> Iterator[Served]:
    log = logs / f"{command[0]}.log"
    argv = image.contained(*command, "--listen-port=0")
    served = Served(LoggedProcess(command[0], argv, log))
    served.process.start()
    try:
        wait_for(lambda: served.port, "it says where it listens", of=served.process)
        yield served
    finally:
        served.process.stop()


@pytest.fixture
def logs(run_directory: Path, request: pytest.FixtureRequest) -> Path:
    directory = run_directory / str(request.node.name) / "logs"
    directory.mkdir(parents=True)
    return directory


@pytest.fixture
def extender(image: Image, logs: Path) -> Iterator[Served]:
    """The extender without an API server, which stores the certificates."""
    command = (
        "linkwise-extender",
        f"--api-server={NOBODY_LISTENS}",
        *("--listen-address=127.0.0.1", "--plain-http=true", "--status-port=0"),
    )
    with serving(image, logs, *command) as served:
        yield served


def test_it_adds_little_to_its_base(image: Image) -> None:
    added = image_size(image.archive) - image_size(base_image())
    assert 0 < added <= MOST_BYTES_OVER_BASE


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_is_there_and_knows_its_version(image: Image, program: str) -> None:
    assert VERSION in image.output(program, "--version")
    assert "Usage:" in image.output(program, "--help")


def test_the_command_line_judges_a_machine(image: Image) -> None:
    asked = ("--machine=dgx1-v100", "--free=0,2,4,5", "--size=2", "--output=json")
    chosen = json.loads(image.output("linkwise", "choose", *asked))["chosen"]
    assert chosen["gpus"] == [0, 4]


def test_it_says_itself_that_it_runs_as_nobody(image: Image) -> None:
    assert image.output("id", "-u").strip() == "65532"


def test_the_extender_lives_on_a_read_only_root_and_waits_for_an_api_server(
    extender: Served,
) -> None:
    assert extender.ask("/healthz") == (200, "ok\n")
    status, missing = extender.ask("/readyz")
    assert (status, missing != "") == (503, True)
    assert extender.status("Uid").split() == ["65532"] * 4
    assert int(extender.status("CapEff"), 16) == 0


def test_the_extender_takes_a_large_call_without_a_writable_file(extender: Served) -> None:
    """Servers tend to buffer requests beyond 1 MiB in /tmp."""
    names = [f"node-{number:08d}" for number in range(100_000)]
    main = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    meta = {"name": "p", "namespace": "default", "uid": "1"}
    pod = {"metadata": meta, "spec": {"containers": [main]}}
    call = json.dumps({"Pod": pod, "NodeNames": names}).encode()
    assert len(call) > 1 << 20
    status, answer = extender.call("filter", call)
    assert (status, json.loads(answer)["Error"]) == (
        200,
        "linkwise: not ready: still reading nodes and pods",
    )


def test_the_plugin_plays_a_machine_without_a_writable_file(image: Image, logs: Path) -> None:
    command = ("linkwise-plugin", "--node-name=n1", "--machine=hgx-h100")
    with serving(image, logs, *command, f"--api-server={NOBODY_LISTENS}") as plugin:
        assert plugin.ask("/healthz") == (200, "ok\n")
        healthy = 'linkwise_plugin_devices{health="healthy"} 8.0'
        wait_for(lambda: healthy in plugin.ask("/metrics")[1], "it offers the machine's 8 GPUs")
        assert plugin.status("Uid").split() == ["65532"] * 4


def test_every_module_of_linkwise_can_be_imported_but_the_simulator(image: Image) -> None:
    """Its dependencies have been thinned out; nothing in use may be missing."""
    (packages,) = image.root.glob("opt/linkwise/lib/*/site-packages")
    modules = {
        ".".join(path.relative_to(packages).with_suffix("").parts).removesuffix(".__init__")
        for path in (packages / "linkwise").rglob("*.py")
    }
    roots = {name.split(".")[1] for name in modules}
    assert roots == {
        "topology",
        "drawing",
        "kube",
        "serving",
        "pods",
        "plugin",
        "extender",
        "webhook",
        "replay",
        "cli",
    }
    imports = "\n".join(f"import {name}" for name in sorted(modules))
    image.output("python", "-W", "error", "-c", imports)


def test_the_driver_s_library_is_looked_for_and_its_absence_told(image: Image) -> None:
    command = ("linkwise-plugin", "--node-name=n1", f"--api-server={NOBODY_LISTENS}")
    ended = subprocess.run(
        image.contained(*command, "--no-driver=exit"), capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert "NVML" in ended.stderr


def test_all_byte_code_is_made_and_holds_whatever_the_time_stamps(image: Image) -> None:
    """A read-only root file system stores none, so each start would compile everything again."""
    sources = list((image.root / "opt/linkwise/lib").rglob("*.py"))
    assert len(sources) > 500
    checked_hash_or_time = [
        source
        for source in sources
        # PEP 552: the second word is 1 if the source is not checked.
        if Path(cache_from_source(str(source), optimization="")).read_bytes()[4:8] != b"\1\0\0\0"
    ]
    assert not checked_hash_or_time


def test_no_tool_that_made_it_is_left(image: Image) -> None:
    on_path = {path.name for path in image.root.glob("usr/**/bin/*")}
    assert "python3" in on_path
    assert not on_path & {"gcc", "cc", "g++", "clang", "ld", "as", "make", "pip", "pip3", "git"}
    ours = {path.name for path in (image.root / "opt/linkwise/bin").iterdir()}
    assert ours == {*PROGRAMS, "python", "python3", "python3.11"}
    installed = {path.name for path in image.root.glob("opt/linkwise/lib/*/site-packages/*")}
    assert {"linkwise", "numpy", "grpc"} <= installed
    assert not installed & {"pip", "setuptools", "hatchling", "aiohttp"}


def test_nothing_lies_about_in_it(image: Image) -> None:
    for directory in ("src", "build", "dist", "root/.cache"):
        assert not (image.root / directory).exists()
    for directory in ("tmp", "var/tmp"):
        assert not list((image.root / directory).iterdir())
    lists = {path.name for path in (image.root / "var/lib/apt/lists").iterdir()}
    assert lists <= {"lock", "partial"}
    assert not [path for path in (image.root / "opt/linkwise").rglob("tests") if path.is_dir()]


def test_nobody_but_root_could_change_what_runs(image: Image) -> None:
    for path in (image.root / "opt/linkwise").rglob("*"):
        at = path.lstat()
        assert (at.st_uid, at.st_gid) == (0, 0), path
        assert path.is_symlink() or not at.st_mode & 0o022, path
