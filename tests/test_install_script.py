"""install.sh of the kubeadm overlay, on a directory that looks like a control plane node's.

kubectl is stood in for (fake_kubectl.py); tests/cluster/test_overlays.py has the real one, and a
kubelet that starts what comes of it.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.support.programs.binaries import NEWEST
from tests.manifests import DAEMONSET, STATIC_POD

OVERLAY = DAEMONSET / "overlays" / "kubeadm"
FLAG = "--config=/etc/kubernetes/linkwise/scheduler-config.yaml"
FILES = {"ca.crt", "client.pem", "scheduler-config.yaml", "before.yaml"}
PINGS = {"HTTP2_READ_IDLE_TIMEOUT_SECONDS", "HTTP2_PING_TIMEOUT_SECONDS"}
CA = "-----BEGIN CERTIFICATE-----\nauthority\n-----END CERTIFICATE-----\n"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nscheduler\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN RSA PRIVATE KEY-----\nsecret\n-----END RSA PRIVATE KEY-----\n"
# Which change files; the moment before each, and after the last, is one to be killed at.
CHANGE = ("cat", "chmod", "cp", "mkdir", "mv", "rm")
KILLER = """#!/bin/sh
read -r count < "$COUNT"
echo $((count + 1)) > "$COUNT"
[ "$count" != "$DIE_AT" ] || kill -9 0
exec {program} "$@"
"""


class Node:
    """A control plane node's files, and what its cluster says."""

    def __init__(self, directory: Path) -> None:
        self.etc, self.cluster = directory / "the etc", directory / "cluster"
        self.bin, self.count = directory / "bin", directory / "count"
        for each in (self.etc / "manifests", self.cluster, self.bin):
            each.mkdir(parents=True)
        self.manifest = self.etc / "manifests" / "kube-scheduler.yaml"
        self.ours = self.etc / "linkwise"
        self.write(STATIC_POD)
        (self.etc / "admin.conf").write_text("{}")
        self.renew(CERTIFICATE, KEY)
        (self.cluster / "ca.crt").write_text(CA)
        for part in OVERLAY.glob("kube-scheduler[01]*.yaml"):
            patch = yaml.safe_load(part.read_text())
            (self.cluster / part.name).write_text(json.dumps(patch))
        kubectl = Path(__file__).with_name("fake_kubectl.py")
        self.script("kubectl", f'#!/bin/sh\nexec {sys.executable} -I -S {kubectl} "$@"\n')
        for name in CHANGE:
            self.script(name, KILLER.format(program=shutil.which(name)))
        # The real one waits for the disk, which others keep busy; to be killed does not need it.
        self.script("sync", '#!/bin/sh\necho sync >> "$FAKE_CLUSTER/order"\n')

    def script(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def write(self, pod: Any) -> str:
        self.manifest.write_text(json.dumps(pod, indent=2))
        return self.manifest.read_text()

    def renew(self, certificate: str, key: str) -> None:
        """As `kubeadm certs renew` does it."""
        user = {
            name: base64.b64encode(text.encode()).decode()
            for name, text in (("client-certificate-data", certificate), ("client-key-data", key))
        }
        conf = self.etc / "scheduler.conf"
        conf.write_text(json.dumps({"users": [{"user": user}]}))
        conf.chmod(0o600)

    def run(self, task: str, *, die_at: int = -1) -> subprocess.CompletedProcess[str]:
        """From another directory than the script's, and with a path from there."""
        self.count.write_text("0\n")
        return subprocess.run(
            [
                "sh",
                os.path.relpath(OVERLAY / "install.sh", self.cluster),
                task,
                "--etc",
                "../the etc",
            ],
            cwd=self.cluster,
            env={
                "PATH": f"{self.bin}:{os.environ['PATH']}",
                "FAKE_CLUSTER": str(self.cluster),
                "TMPDIR": str(self.cluster),
                "COUNT": str(self.count),
                "DIE_AT": str(die_at),
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            start_new_session=True,
        )

    def done(self, task: str) -> str:
        ended = self.run(task)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def refused(self, task: str) -> str:
        """What it says; nothing may have changed."""
        before = self.files()
        ended = self.run(task)
        assert ended.returncode == 1
        assert self.files() == before
        return ended.stderr

    @property
    def pod(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.manifest.read_text())
        return found

    @property
    def command(self) -> list[str]:
        (container,) = self.pod["spec"]["containers"]
        return list(container["command"])

    def files(self) -> dict[str, str]:
        found = [path for path in self.etc.rglob("*") if path.is_file()]
        return {str(path.relative_to(self.etc)): path.read_text() for path in found}

    def asked(self) -> list[list[str]]:
        path = self.cluster / "asked"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def assert_works(self) -> None:
        """The kubelet finds one manifest, and all that it names."""
        shown = [path for path in self.manifest.parent.iterdir() if path.name[0] != "."]
        assert shown == [self.manifest]
        if FLAG in self.command:
            assert self.command.count(FLAG) == 1
            config = yaml.safe_load((self.ours / "scheduler-config.yaml").read_text())
            tls = config["extenders"][0]["tlsConfig"]
            for name in ("caFile", "certFile", "keyFile"):
                assert (self.ours / Path(tls[name]).name).stat().st_size
            (container,) = self.pod["spec"]["containers"]
            assert container["volumeMounts"][-1]["mountPath"] == str(Path(tls["caFile"]).parent)
            assert self.pod["spec"]["volumes"][-1]["hostPath"]["path"] == str(
                Path(tls["caFile"]).parent
            )
        else:
            assert self.command == STATIC_POD["spec"]["containers"][0]["command"]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_kube_scheduler_is_told_and_its_files_are_made(node: Node) -> None:
    before = node.manifest.read_text()
    assert "kube-scheduler calls Linkwise" in node.done("install")
    node.assert_works()
    assert FLAG in node.command
    (container,) = node.pod["spec"]["containers"]
    assert {each["name"] for each in container["env"]} == PINGS
    assert {path.name for path in node.ours.iterdir()} == FILES
    assert (node.ours / "before.yaml").read_text() == before
    assert (node.ours / "ca.crt").read_text() == CA
    assert (node.ours / "client.pem").read_text() == CERTIFICATE + KEY
    assert (node.ours / "client.pem").stat().st_mode & 0o777 == 0o600
    config = (OVERLAY / "scheduler-config.yaml").read_text()
    assert (node.ours / "scheduler-config.yaml").read_text() == config
    assert list(node.manifest.parent.iterdir()) == [node.manifest]


def test_the_extender_is_asked_as_kube_scheduler_will_ask_it(node: Node) -> None:
    node.done("install")
    (asked,) = node.asked()
    (extender,) = yaml.safe_load((OVERLAY / "scheduler-config.yaml").read_text())["extenders"]
    assert asked[:3] == [extender["urlPrefix"], extender["tlsConfig"]["serverName"], "/filter"]
    assert asked[3:6] == [CA, CERTIFICATE + KEY, CERTIFICATE + KEY]
    question = json.loads(asked[6])
    assert question["NodeNames"] == question["Pod"]["spec"]["containers"] == []


def test_a_second_time_changes_nothing(node: Node) -> None:
    node.done("install")
    once = node.files()
    assert "kube-scheduler runs on" in node.done("install")
    assert node.files() == once
    assert "all is in place" in node.done("check")


def test_a_renewed_certificate_is_taken_without_a_restart(node: Node) -> None:
    node.done("install")
    manifest = node.manifest.read_text()
    renewed = CERTIFICATE.replace("scheduler", "renewed")
    node.renew(renewed, KEY)
    assert "client.pem is out of date" in node.run("check").stdout
    assert "kube-scheduler runs on" in node.done("install")
    assert (node.ours / "client.pem").read_text() == renewed + KEY
    assert node.manifest.read_text() == manifest


def test_what_kube_scheduler_reads_at_its_start_only_starts_it_again(node: Node) -> None:
    node.done("install")
    manifest = node.manifest.read_text()
    (node.cluster / "ca.crt").write_text(CA + CA.replace("authority", "next"))
    assert "kube-scheduler calls Linkwise" in node.done("install")
    node.assert_works()
    assert node.manifest.read_text() != manifest
    assert "next" in (node.ours / "ca.crt").read_text()


def test_a_kube_scheduler_that_was_not_started_again_is_said(node: Node) -> None:
    """As after an installation that was killed between the files and the manifest."""
    node.done("install")
    for file in (node.cluster / "ca.crt", node.ours / "ca.crt"):
        file.write_text(CA + CA.replace("authority", "next"))
    ended = node.run("check")
    assert (ended.returncode, "run install again" in ended.stdout) == (1, True)
    node.done("install")
    assert "all is in place" in node.done("check")


def test_a_manifest_with_half_of_the_change_is_said(node: Node) -> None:
    node.done("install")
    half = node.pod
    half["spec"]["volumes"].pop()
    node.write(half)
    assert node.run("check").returncode == 1
    node.done("install")
    node.assert_works()


def test_it_is_undone_to_the_letter(node: Node) -> None:
    before = node.files()
    for _ in range(2):
        node.done("install")
        node.done("install")
        node.done("uninstall")
        assert node.files() == before
        assert not node.ours.exists()
    node.done("uninstall")
    assert node.files() == before


@pytest.mark.parametrize(
    ("gates", "said"),
    [
        ("\n\n", ""),
        ("linkwise.dev/plan\n\nother linkwise.dev/plan\nother\n", "without Linkwise: 2 (docs"),
        (None, "linkwise.dev/plan: unknown, the cluster cannot be asked (docs"),
    ],
)
def test_undone_it_says_how_many_pods_stay_behind_the_gate(
    node: Node, gates: str | None, said: str
) -> None:
    node.done("install")
    if gates is not None:
        (node.cluster / "gates").write_text(gates)
    told = node.done("uninstall")
    assert told.startswith("linkwise: kube-scheduler asks Linkwise no longer\n")
    assert said in told
    assert told.count("linkwise.dev/plan") == bool(said)


def test_what_others_changed_meanwhile_stays(node: Node) -> None:
    """As an upgrade that was given the patch: another version, and a flag before Linkwise's."""
    node.done("install")
    upgraded = node.pod
    (container,) = upgraded["spec"]["containers"]
    container["image"] = "registry.k8s.io/kube-scheduler:v1.38.0"
    container["command"].insert(1, "--v=4")
    container["env"].insert(0, {"name": "NO_PROXY", "value": "10.96.0.0/12"})
    upgraded["spec"]["volumes"].insert(0, {"name": "x", "hostPath": {"path": "/x"}})
    node.write(upgraded)
    assert "kube-scheduler" in node.done("install")
    assert NEWEST in (node.ours / "before.yaml").read_text(), "no patched one takes its place"
    node.done("uninstall")
    (container,) = node.pod["spec"]["containers"]
    assert container["image"].endswith("v1.38.0")
    assert container["command"] == [
        "kube-scheduler",
        "--v=4",
        *STATIC_POD["spec"]["containers"][0]["command"][1:],
    ]
    assert [volume["name"] for volume in node.pod["spec"]["volumes"]] == ["x", "kubeconfig"]
    assert [mount["name"] for mount in container["volumeMounts"]] == ["kubeconfig"]
    assert [each["name"] for each in container["env"]] == ["NO_PROXY"]
    assert not node.pod["metadata"]["annotations"]


def test_after_an_upgrade_without_the_patch_it_is_done_again(node: Node) -> None:
    node.done("install")
    upgraded = json.loads(json.dumps(STATIC_POD))
    upgraded["spec"]["containers"][0]["image"] = "registry.k8s.io/kube-scheduler:v1.38.0"
    text = node.write(upgraded)
    assert "does not name" in node.run("check").stdout
    node.done("install")
    assert FLAG in node.command
    assert (node.ours / "before.yaml").read_text() == text
    node.done("uninstall")
    assert node.manifest.read_text() == text


def test_flags_of_others_stay(node: Node) -> None:
    pod = json.loads(json.dumps(STATIC_POD))
    pod["spec"]["containers"][0]["command"] += ["--profiling=false", "--feature-gates=A=true"]
    text = node.write(pod)
    node.done("install")
    assert node.command == [*pod["spec"]["containers"][0]["command"], FLAG]
    node.done("uninstall")
    assert node.manifest.read_text() == text


def test_a_scheduler_that_has_a_file_already_is_left_alone(node: Node) -> None:
    pod = json.loads(json.dumps(STATIC_POD))
    pod["spec"]["containers"][0]["command"].append("--config=/etc/kubernetes/other.yaml")
    node.write(pod)
    assert "has --config=/etc/kubernetes/other.yaml already" in node.refused("install")


@pytest.mark.parametrize("text", ["", "{", "[]", '"text"', '{"kind": "Pod"}'])
def test_a_manifest_that_is_none_is_left_alone(node: Node, text: str) -> None:
    node.manifest.write_text(text)
    said = node.refused("install")
    assert node.manifest.name in said
    assert "nothing is changed" in said or "is empty" in said


@pytest.mark.parametrize("text", ["", "{", None])
def test_files_that_a_manifest_may_still_name_are_not_taken_away(
    node: Node, text: str | None
) -> None:
    """An editor saves it, or an operator has moved it away to stop kube-scheduler for a while."""
    node.done("install")
    manifest = node.manifest.read_text()
    node.manifest.unlink()
    if text is not None:
        node.manifest.write_text(text)
    assert "nothing is changed" in node.refused("uninstall")
    node.manifest.write_text(manifest)
    node.assert_works()


@pytest.mark.parametrize("task", ["install", "uninstall"])
def test_an_upgrade_meanwhile_is_not_undone(node: Node, task: str) -> None:
    if task == "uninstall":
        node.done("install")
    upgraded = json.loads(json.dumps(STATIC_POD))
    upgraded["spec"]["containers"][0]["image"] = "registry.k8s.io/kube-scheduler:v1.38.0"
    # The manifest has been read when the next one is made beside it.
    mv, cp = (shutil.which(name) for name in ("mv", "cp"))
    text = json.dumps(upgraded)
    (node.cluster / "upgraded").write_text(text)
    node.script(
        "cp",
        '#!/bin/sh\ncase "$*" in *.linkwise-next*)\n'
        f'{cp} "$FAKE_CLUSTER/upgraded" "$FAKE_CLUSTER/put"\n'
        f'{mv} "$FAKE_CLUSTER/put" "{node.manifest}" ;; esac\nexec {cp} "$@"\n',
    )
    ended = node.run(task)
    assert (ended.returncode, "was changed meanwhile" in ended.stderr) == (1, True)
    assert node.manifest.read_text() == text
    assert list(node.manifest.parent.iterdir()) == [node.manifest]


def test_without_an_answer_nothing_is_changed(node: Node) -> None:
    (node.cluster / "away").touch()
    assert "the extender does not answer" in node.refused("install")
    node.run("install")
    (node.cluster / "away").unlink()
    node.done("install")
    (node.cluster / "away").touch()
    ended = node.run("check")
    assert (ended.returncode, "the extender does not answer" in ended.stdout) == (1, True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ca": None}, "the overlay is not applied yet"),
        ({"ca": ""}, "no extender has published its authority yet"),
        ({"key": ""}, "has no client certificate and key"),
        ({"certificate": ""}, "has no client certificate and key"),
    ],
)
def test_what_is_missing_is_said_and_nothing_changed(
    node: Node, wrong: dict[str, str | None], said: str
) -> None:
    if "ca" in wrong:
        (node.cluster / "ca.crt").unlink()
        if wrong["ca"] is not None:
            (node.cluster / "ca.crt").write_text("")
    node.renew(wrong.get("certificate", CERTIFICATE) or "", wrong.get("key", KEY) or "")
    if "ca" in wrong:
        node.renew(CERTIFICATE, KEY)
    assert said in node.refused("install")


@pytest.mark.parametrize("missing", ["scheduler.conf", "admin.conf", "manifests"])
def test_a_node_without_a_control_plane_is_said(node: Node, missing: str) -> None:
    path = node.etc / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert missing in node.refused("install")


@pytest.mark.parametrize("words", [[], ["remove"], ["install", "--force"]])
def test_what_it_can_do_is_said(node: Node, words: list[str]) -> None:
    ended = subprocess.run(
        ["sh", OVERLAY / "install.sh", *words, "--etc", node.etc],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "install.sh uninstall" in ended.stderr


def test_each_file_is_on_the_disk_before_it_gets_its_name(node: Node) -> None:
    """Else a node that loses power may find an empty one under it."""
    mv = shutil.which("mv")
    node.script("mv", f'#!/bin/sh\necho mv >> "$FAKE_CLUSTER/order"\nexec {mv} "$@"\n')
    node.done("install")
    node.done("uninstall")
    order = (node.cluster / "order").read_text().split()
    assert order == ["sync", "mv"] * (len(FILES) + 2), "four files; the manifest, there and back"


# Each of a pair takes every other moment, so that two workers share them.
@pytest.mark.parametrize("first", [0, 1])
def test_killed_at_any_moment_of_an_installation_it_leaves_a_scheduler_that_works(
    node: Node, first: int
) -> None:
    """And what was begun is done by the next that runs to its end."""
    stock, step, states = node.files(), first, set()
    while True:
        ended = node.run("install", die_at=step)
        node.assert_works()
        states.add(FLAG in node.command)
        if ended.returncode == 0:
            break
        assert ended.returncode == -9
        if node.files() != stock:
            for task in ("install", "uninstall"):
                node.done(task)
            assert node.files() == stock
        step += 2
    assert step > 15
    assert states == {True, False}


@pytest.mark.parametrize("first", [0, 1])
def test_killed_at_any_moment_of_its_removal_it_leaves_a_scheduler_that_works(
    node: Node, first: int
) -> None:
    stock, step = node.files(), first
    node.done("install")
    while True:
        ended = node.run("uninstall", die_at=step)
        node.assert_works()
        if ended.returncode == 0:
            break
        assert ended.returncode == -9
        node.done("uninstall")
        assert node.files() == stock
        node.done("install")
        step += 2
    assert step > 4
    assert node.files() == stock
