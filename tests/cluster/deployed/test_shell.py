"""The shell for people: its greeting's suggestions work."""

from pathlib import Path

from tests.cluster.support.nodes.deployment import DeployedLinkwise
from tests.cluster.support.nodes.gpu_holders import assert_agreed, running
from tests.cluster.support.nodes.shell import run_shell, write_jobs

TRIED = """
kubectl apply -f four.yaml || exit 1
kubectl delete -f four.yaml || exit 2
kubectl apply -f gang.yaml || exit 3
kubectl get --raw $EXTENDER/nodes | grep -q node-2 || exit 4
kubectl linkwise explain || exit 5
kubectl linkwise nodes | grep -q node-2 || exit 5
kubectl linkwise doctor || exit 8
ls $LOGS/kube-apiserver.log || exit 6
linkwise choose --machine dgx1-v100 --size 4 || exit 7
exit 42
"""


def test_what_the_greeting_says_can_be_done(deployed: DeployedLinkwise, tmp_path: Path) -> None:
    (tmp_path / "typed").write_text(TRIED)
    with (tmp_path / "typed").open() as typed:
        assert run_shell(deployed.control, write_jobs(deployed.directory), 0, typed) == 42
    for pod in running(deployed, "job-name=train", 2):
        assert_agreed(deployed, pod)
