"""The demo as users run it: one command, a whole cluster of real programs, nothing left behind.

Everything that one command starts carries the same word in its environment, which is how what is
left of it is found, wherever it has gone.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen
from uuid import uuid4

import pytest
from click.testing import CliRunner

from linkwise.simulator.__main__ import command
from linkwise.topology.machine.recorded import machine_names
from tests.parsed_page import ParsedPage

ROOT = Path(__file__).parents[2]
EXAMPLES = [str(file) for file in sorted((ROOT / "examples").glob("*.yaml"))]
MOVES = [str(file) for file in sorted((ROOT / "examples" / "moves").glob("*.yaml"))]
ONE = ("--node", "n2=a100-pcie-4-bridged")  # each node is a program to start
SMALL = ("--node", "n1=a100-pcie-2", *ONE)
RUN_SECONDS = 240.0  # far beyond what the demo takes, on a machine that others use as well
END_SECONDS = 60.0
ORPHAN_SECONDS = 60.0
_ROOTS = tuple(path.parent.name for path in sorted(ROOT.glob("*/linkwise")))
_MARK = "TEST_DEMO_MARK"
_BY_WORKLOAD = re.compile(r"^  (\S+)\n((?:    .*\n?)+)", re.M)

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: lone
spec:
  containers:
    - name: trainer
      image: registry.example/trainer:1
      resources:
        limits:
          nvidia.com/gpu: 2
"""


class Demo:
    """What a command started; its temporary files are all in *directory*/tmp."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.mark = f"{_MARK}={uuid4()}"
        self.temp = directory / "tmp"
        self.temp.mkdir()
        self._out, self._err = directory / "out.txt", directory / "err.txt"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "linkwise.simulator", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=directory,
                env=_environment(self.temp, self.mark),
            )

    @property
    def output(self) -> str:
        return self._out.read_text()

    @property
    def errors(self) -> str:
        return self._err.read_text()

    def programs(self) -> dict[int, str]:
        """Its plugins and its extender, by pid."""
        return {
            pid: line
            for pid, line in _marked(self.mark).items()
            if "linkwise.plugin" in line or "linkwise.extender" in line
        }

    def left(self) -> dict[int, str]:
        """All processes that it started, itself included."""
        return _marked(self.mark)

    def ends(self, seconds: float) -> int:
        return self.process.wait(seconds)


@contextmanager
def started(directory: Path, *arguments: str) -> Iterator[Demo]:
    demo = Demo(directory, *arguments)
    try:
        yield demo
    finally:
        demo.process.kill()
        demo.process.wait()
        for pid in demo.left():
            _kill(pid)


def wait_for(demo: Demo, predicate: Callable[[], object], what: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(
                f"after {seconds:g} s still not so: {what}; left: {demo.left()}\n{demo.errors}"
            )
        time.sleep(0.02)


def _environment(temp: Path, mark: str) -> Mapping[str, str]:
    name, _, value = mark.partition("=")
    paths = [str(path) for path in (ROOT / root for root in _ROOTS)]
    # Nothing of the user's own may change what is shown, and a bare checkout must do.
    kept = {k: v for k, v in os.environ.items() if not k.startswith("LINKWISE_")}
    return kept | {
        "TMPDIR": str(temp),
        "PYTHONPATH": os.pathsep.join(paths),
        "COLUMNS": "80",
        name: value,
    }


def _marked(mark: str) -> dict[int, str]:
    """pid -> command line of the living processes with *mark* in their environment."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(entry.name)] = line.strip()
        except OSError:  # it has just ended, or another user owns it
            continue
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@contextmanager
def short_directory() -> Iterator[Path]:
    """With a pod in it. Unix sockets have little room for their path, and where TMPDIR is long the
    demo goes elsewhere."""
    with TemporaryDirectory(prefix="demo-", dir="/tmp") as name:
        directory = Path(name)
        (directory / "pod.yaml").write_text(POD)
        yield directory


@pytest.fixture
def directory() -> Iterator[Path]:
    with short_directory() as directory:
        yield directory


# One run of all examples


@dataclass(frozen=True, slots=True)
class Outcome:
    status: int
    output: str
    errors: str
    page: str
    left: Mapping[int, str]
    files: Sequence[Path]


@pytest.fixture(scope="module")
def outcome() -> Iterator[Outcome]:
    with short_directory() as directory:
        page = directory / "pictures" / "demo.html"
        with started(directory, "--no-baseline", "--report", str(page), *EXAMPLES) as demo:
            status = demo.ends(RUN_SECONDS)
            yield Outcome(
                status,
                demo.output,
                demo.errors,
                page.read_text() if page.exists() else "",
                left=demo.left(),
                files=list(demo.temp.iterdir()),
            )


@dataclass(frozen=True, slots=True)
class Row:
    short: str
    node: str
    gpus: str
    link: str


def rows(output: str) -> dict[str, list[Row]]:
    """workload -> its pods that have a place, as the table shows them."""
    found: dict[str, list[Row]] = {}
    table = output.split("\n\nhgx-h100-1 ")[0].splitlines()
    workload = ""
    for line in table:
        if head := re.match(r" [A-Z]  (\S+)  ", line):
            workload = head[1]
            found[workload] = []
        elif pod := re.match(r"  ([A-Z]\d*) +(\S+) +([\d,-]+)(?: +([A-Z]+) +[\d.]+)?$", line):
            found[workload].append(Row(pod[1], pod[2], pod[3], pod[4] or ""))
    return found


def test_all_is_as_planned_and_all_examples_but_one_have_their_gpus(outcome: Outcome) -> None:
    assert outcome.status == 0, outcome.errors
    words = " ".join(outcome.output.split())
    assert "OK: 18 of 18 pods hold exactly the GPUs of their plan;" in words
    assert {name: len(pods) for name, pods in rows(outcome.output).items()} == {
        "finetune": 1,
        "pretrain": 4,
        "dialogue": 4,
        "vision": 2,
        "tuning": 4,
        "evaluate": 3,
        "too-large": 0,
    }


def test_each_example_gets_what_it_asks_for(outcome: Outcome) -> None:
    placed = rows(outcome.output)

    # One gang of whole nodes: four of one kind, or its slowest member slows down the others.
    assert sorted(row.node for row in placed["pretrain"]) == [f"hgx-h100-{n}" for n in range(1, 5)]
    assert {row.gpus for row in placed["pretrain"]} == {"0-7"}
    assert {row.link for row in placed["dialogue"]} == {"NVLINK"}
    assert {row.link for row in placed["finetune"] + placed["vision"]} == {"NVLINK"}
    held = [(row.node, row.gpus) for row in chain(*placed.values())]
    assert len(set(held)) == len(held)


def test_it_says_why_each_workload_is_where_it_is(outcome: Outcome) -> None:
    said = outcome.output.partition("Why pods are where they are\n")[2].partition("\n\n")[0]
    reasons = {name: " ".join(words.split()) for name, words in _BY_WORKLOAD.findall(said)}

    assert reasons.keys() == {"finetune", "pretrain", "dialogue", "vision", "tuning", "evaluate"}
    assert all(words.startswith("next best ") for words in reasons.values())
    assert reasons["vision"].endswith("loses by worth: 120.0 against 40.0 GB/s")


def test_it_says_why_the_gang_that_is_too_large_waits(outcome: Outcome) -> None:
    reasons = outcome.output.partition("Why pods wait\n")[2]

    words = " ".join(reasons.split())
    assert words.startswith("too-large (3 of 3 pods): ")
    assert "no room for the whole gang. Room for 0 of 3 members. Nearest is a100-pcie" in words


def test_it_says_how_long_each_workload_took_and_the_page_has_a_line_for_each_pod(
    outcome: Outcome,
) -> None:
    times = outcome.output.partition("Pods in time\n")[2].partition("Times: ")[0]
    bound = r" [\d.]+ s after the last of these was created"

    assert re.search(rf"^  pretrain +4 of 4 bound{bound}$", times, re.M)
    assert re.search(r"^  finetune +bound [\d.]+ s after it was created$", times, re.M)
    assert re.search(r"^  too-large +3 of 3 wait still$", times, re.M)
    paths = Counter(path.get("class") for path in ParsedPage(outcome.page).named("path"))
    assert (paths["waits"], paths["runs"]) == (21 + 1, 18 + 1)  # one in the legend


def test_it_can_be_read_in_eighty_columns_without_colour(outcome: Outcome) -> None:
    assert max(map(len, outcome.output.splitlines())) <= 80
    assert "\x1b" not in outcome.output + outcome.errors


def test_it_shows_its_progress_beside_the_report(outcome: Outcome) -> None:
    assert "Start 8 nodes, a linkwise-plugin on each (" in outcome.errors
    assert "Run the manifests with Linkwise: 18 of 21 pods run, 3 wait (" in outcome.errors
    assert "Start 8 nodes" not in outcome.output


def test_the_page_has_a_drawing_of_every_node(outcome: Outcome) -> None:
    assert outcome.page.count('<svg class="machine"') == 8
    assert outcome.page.rstrip().endswith("</html>")
    assert "18 of 18 pods hold exactly the GPUs" in outcome.page


def test_nothing_is_left_of_it(outcome: Outcome) -> None:
    assert outcome.left == {}
    assert outcome.files == []


def test_nodes_of_two_vendors_run_the_pods_that_request_their_gpus(directory: Path) -> None:
    amd = POD.replace("lone", "other").replace("nvidia.com", "amd.com")
    (directory / "pods.yaml").write_text(f"{POD}---\n{amd}")
    nodes = ["--node=a=mi250x-frontier", "--node=n=dgx-a100"]
    with started(directory, *nodes, "--no-baseline", "-o", "json", "pods.yaml") as demo:
        assert demo.ends(60) == 0, demo.errors
        found = json.loads(demo.output)
    places = {
        pod["pod"]: pod["place"]["node"] for each in found["workloads"] for pod in each["pods"]
    }
    assert places == {"default/lone": "n", "default/other": "a"}


def test_a_pod_that_consents_is_moved_so_that_another_starts(directory: Path) -> None:
    """What `make demo` shows after that."""
    page = directory / "demo.html"
    nodes = ("--node", "gpu-1=dgx-a100", "--node", "gpu-2=dgx-a100")
    words = ("--moves", "--no-baseline", "--fail-if-waiting", "--report", str(page), *nodes)
    with started(directory, *words, *MOVES) as demo:
        assert demo.ends(RUN_SECONDS) == 0, demo.errors

    places = {name: [(p.node, p.gpus) for p in pods] for name, pods in rows(demo.output).items()}
    assert places["whole-node"] == [("gpu-1", "0-7")]
    assert [node for node, _ in places["notebook"]] == ["gpu-2"]
    told = demo.output.partition("Pods that were moved\n")[2].partition("\n\n")[0]
    assert re.fullmatch(
        r"default/notebook-\S+ was on gpu-1, GPUs 0-1 evicted to make room for pod "
        r"default/whole-node-\w+: this pod's next place is reserved on gpu-2",
        " ".join(told.split()),
    )
    assert "next place is reserved on gpu-2" in page.read_text().replace("&#39;", "'")
    assert "OK: 3 of 3 pods hold exactly" in demo.output


def test_beside_it_stands_what_kubernetes_alone_would_have_given(directory: Path) -> None:
    page = directory / "demo.html"
    words = ("--draws", "2", "--seed", "5", "--report", str(page), *SMALL, "pod.yaml")
    with started(directory, *words) as demo:
        assert demo.ends(RUN_SECONDS) == 0, demo.errors

    assert re.search(r"^  A   n2 +0-1 +NVLINK  210\.0  n[12] +\S+ +[A-Z]+", demo.output, re.M)
    assert "2 draws (seed 5)" in " ".join(demo.output.split())
    assert "OK: 1 of 1 pods hold exactly" in demo.output
    assert page.read_text().count('<svg class="machine"') == 2 * 2


# What people have

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  template:
    spec: {containers: [{name: m, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]}
"""
JOB_SET = """\
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: gpt}
spec:
  replicatedJobs:
  - name: node
    replicas: 2
    template:
      spec:
        template:
          spec:
            restartPolicy: Never
            containers: [{name: m, image: x, resources: {limits: {nvidia.com/gpu: 2}}}]
"""


def test_workloads_run_as_their_controllers_pods_and_programs_can_read_it(directory: Path) -> None:
    """Six GPUs for six: one gang of two Jobs, and two copies. The JSON is all of the output."""
    (directory / "both.yaml").write_text(f"{JOB_SET}---\n{DEPLOYMENT}")
    words = ("--no-baseline", "--fail-if-waiting", "-o", "json", *SMALL, "both.yaml")
    with started(directory, *words) as demo:
        assert demo.ends(RUN_SECONDS) == 0, demo.errors

    report = json.loads(demo.output)
    assert (report["good"], report["compared"]) == (True, 4)
    workloads = sorted(report["workloads"], key=lambda workload: str(workload["name"]))
    assert [(w["name"], w["needed"], w["running"]) for w in workloads] == [
        ("gpt", 2, 2),
        ("web", 0, 2),
    ]
    held = [
        (p["place"]["node"], g)
        for w in report["workloads"]
        for p in w["pods"]
        for g in p["place"]["gpus"]
    ]
    assert len(held) == len(set(held)) == 6
    seconds = [pod["seconds"] for w in report["workloads"] for pod in w["pods"]]
    assert min(each["created"] for each in seconds) == 0
    for each in seconds:
        assert each["created"] <= each["bound"] <= each["running"] <= report["seconds"]
        assert each["ended"] is None
    assert all(0 <= w["bound_after_seconds"] <= report["seconds"] for w in workloads)


@pytest.mark.parametrize(
    ("manifest", "flags", "says"),
    [
        (
            POD.replace(
                "  name: lone", "  name: lone\n  annotations:\n    linkwise.dev/gang-sise: '2'"
            ),
            (),
            "default/lone: The pod cannot be placed: linkwise.dev/gang-sise: no such "
            "annotation: expected linkwise.dev/gang-size",
        ),
        (POD.replace("gpu: 2", "gpu: 16"), (), "no pod has GPUs: 1 wait"),
        (POD.replace("nvidia.com/gpu: 2", "cpu: 2"), (), "no pod takes GPUs"),
        (
            f"{POD}---\n{POD}".replace("gpu: 2", "gpu: 16", 1).replace(
                "name: lone", "name: large", 1
            ),
            ("--fail-if-waiting",),
            "--fail-if-waiting: no GPUs for default/large",
        ),
    ],
)
def test_what_was_asked_and_did_not_run_is_no_success(
    directory: Path, manifest: str, flags: tuple[str, ...], says: str
) -> None:
    (directory / "pod.yaml").write_text(manifest)
    with started(directory, "--no-baseline", *flags, *ONE, "pod.yaml") as demo:
        assert demo.ends(RUN_SECONDS) == 1, demo.errors
    assert says in " ".join((demo.output + demo.errors).split())
    assert ("OK:" in demo.output) is bool(flags)


RAY = """\
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: ray}
spec:
  headGroupSpec:
    template:
      spec: {containers: [{name: head, image: x, resources: {requests: {cpu: 400}}}]}
  workerGroupSpecs:
    - groupName: gpu
      replicas: 2
      template:
        spec: {containers: [{name: worker, image: x, resources: {limits: {nvidia.com/gpu: 1}}}]}
"""


def test_a_gang_whose_head_never_runs_is_not_whole(directory: Path) -> None:
    """Found: "no gang runs half" of a RayCluster whose head asks for more than any node has."""
    (directory / "ray.yaml").write_text(RAY)
    with started(directory, "--no-baseline", *ONE, "ray.yaml") as demo:
        assert demo.ends(RUN_SECONDS) == 1, demo.errors
    text = " ".join(demo.output.split())
    assert "FAILED ray: 2 pods have GPUs, and default/ray-head, which takes none, never ran" in text
    assert "It requests cpu 400, and the most that a node has is" in text


def test_the_second_job_of_a_set_in_order_comes_after_the_first(directory: Path) -> None:
    lead, jobs = JOB_SET.split("  replicatedJobs:\n")
    later = jobs.replace("name: node", "name: later").replace("replicas: 2", "replicas: 1")
    order = "  startupPolicy: {startupPolicyOrder: InOrder}\n"
    (directory / "set.yaml").write_text(f"{lead}{order}  replicatedJobs:\n{jobs}{later}")
    with started(directory, "--no-baseline", "-o", "json", *SMALL, "set.yaml") as demo:
        assert demo.ends(RUN_SECONDS) == 0, demo.errors
    report = json.loads(demo.output)
    (gpt,) = report["workloads"]
    *first, second = (pod["seconds"] for pod in gpt["pods"])
    assert max(each["running"] for each in first) <= second["created"]
    assert (gpt["running"], report["to_come"]) == (3, [])


# What is asked wrongly


def refused(directory: Path, *arguments: str) -> str:
    """What it says, having started nothing meanwhile."""
    with started(directory, *arguments) as demo:
        programs: set[str] = set()

        def ended() -> bool:
            programs.update(demo.programs().values())
            return demo.process.poll() is not None

        wait_for(demo, ended, "it has ended", RUN_SECONDS)
        assert demo.process.returncode == 2, demo.errors
        assert programs == set()
        assert demo.output == ""
        return demo.errors


def test_a_broken_manifest_is_refused_before_anything_starts(directory: Path) -> None:
    (directory / "pod.yaml").write_text(POD.replace("name: lone", "name: Lone!"))

    said = "pod.yaml:4: document 1: metadata.name: 'Lone!': expected "
    assert said in refused(directory, *EXAMPLES, "pod.yaml")


def test_an_unknown_machine_is_refused_with_the_names_of_all(directory: Path) -> None:
    said = refused(directory, "--node", "n1=dgx-z", *EXAMPLES)

    assert "'n1=dgx-z'" in said
    assert set(re.findall(r"[\w.-]+", said)) >= set(machine_names())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["absent.yaml"], "absent.yaml: No such file"),
        (["--node", "n1"], "'n1': expected NAME=MACHINE"),
        (["--node", "N_1=hgx-h100"], "node name 'N_1': expected lower-case letters"),
        (["--node", "n=dgx-a100", "--node", "n=dgx-a100"], "n is given twice"),
        (["--report", "/proc/none/x.html"], "/proc/none/x.html: "),
        (["--draws", "0"], "'--draws'"),
        (["--timeout", "0"], "'--timeout'"),
    ],
)
def test_other_wrong_words_are_refused_too(arguments: Sequence[str], says: str) -> None:
    result = CliRunner().invoke(command, [*arguments, *EXAMPLES])

    assert result.exit_code == 2, result.output
    assert says in result.stderr


# How it ends before its time


def a_program_runs(demo: Demo) -> bool:
    return bool(demo.programs())


def all_of_it_runs(demo: Demo) -> bool:
    return "Everything still runs" in demo.errors and len(demo.programs()) == 3


def wait_until(demo: Demo, so: Callable[[Demo], bool]) -> None:
    """See, too, what it keeps in the meantime."""
    wait_for(demo, lambda: so(demo), so.__name__, RUN_SECONDS)
    assert [path.name[:3] for path in demo.temp.iterdir()] == ["lw-"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", [a_program_runs, all_of_it_runs])
def test_a_signal_ends_it_and_all_that_it_started(
    directory: Path, when: Callable[[Demo], bool], number: signal.Signals
) -> None:
    with started(directory, *SMALL, "--no-baseline", "--keep", "pod.yaml") as demo:
        wait_until(demo, when)

        demo.process.send_signal(number)

        assert demo.ends(END_SECONDS) == 128 + number
        # A program that was just being started is ended by the kernel, a moment after its parent.
        wait_for(demo, lambda: not demo.left(), "nothing is left running", ORPHAN_SECONDS)
        assert list(demo.temp.iterdir()) == []
        assert f"{number.name}: ended, nothing is left running" in demo.errors
        assert "Traceback" not in demo.errors


def test_what_is_kept_answers_kubectl_linkwise_and_a_browser(directory: Path) -> None:
    """With the commands and the address that it prints."""
    with started(directory, *SMALL, "--no-baseline", "--keep", "pod.yaml") as demo:
        wait_until(demo, all_of_it_runs)
        wait_for(demo, lambda: "Logs of the programs" in demo.errors, "it says how", RUN_SECONDS)
        (kubeconfig,) = re.findall(r"^  export KUBECONFIG=(\S+)$", demo.errors, re.M)
        commands = re.findall(r"^  kubectl linkwise (.*)$", demo.errors, re.M)
        assert [command.split()[0] for command in commands] == ["explain", "gangs", "nodes"]

        answers = {}
        for words in map(str.split, commands):
            environment = {**_environment(demo.temp, demo.mark), "KUBECONFIG": kubeconfig}
            asked = [sys.executable, "-m", "linkwise.cli.kubectl", *words]
            ran = subprocess.run(
                asked, env=environment, capture_output=True, text=True, check=False
            )
            assert ran.returncode == 0, ran.stderr
            answers[words[0]] = ran.stdout or ran.stderr
        assert answers["explain"].startswith("default/lone: ")
        assert answers["gangs"] == "No gangs.\n"
        assert {"n1", "n2"} <= {line.split()[0] for line in answers["nodes"].splitlines()}

        (page,) = re.findall(r"The live page: (http://127\.0\.0\.1:\d+)/ui/$", demo.errors, re.M)
        with urlopen(page) as moved:  # from / to the page
            assert moved.url == f"{page}/ui/"
            assert b"Linkwise" in moved.read()


def test_a_program_that_is_killed_ends_the_run_with_its_name_and_its_last_words(
    directory: Path,
) -> None:
    with started(directory, *SMALL, "--no-baseline", "pod.yaml") as demo:
        wait_until(demo, a_program_runs)
        (killed,) = (pid for pid, line in demo.programs().items() if "--node-name n1" in line)

        os.kill(killed, signal.SIGKILL)

        assert demo.ends(END_SECONDS) == 1
        assert f"linkwise-plugin on n1 (pid {killed}) ended by signal SIGKILL" in demo.errors
        assert demo.left() == {}
        assert list(demo.temp.iterdir()) == []


def test_no_program_outlives_a_demo_that_is_killed(directory: Path) -> None:
    """The kernel ends them: no process is left to end them in order."""
    with started(directory, *SMALL, "--no-baseline", "--keep", "pod.yaml") as demo:
        wait_until(demo, all_of_it_runs)

        demo.process.kill()

        demo.ends(END_SECONDS)
        wait_for(demo, lambda: not demo.left(), "all programs have ended", ORPHAN_SECONDS)
