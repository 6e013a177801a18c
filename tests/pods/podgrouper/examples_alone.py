"""Pods that run for themselves, as each system makes them."""

from typing import NamedTuple

from tests.pods.podgrouper.pods import Object, owner, pod

STATEFUL = owner("apps/v1 StatefulSet", "nb", {"replicas": 1})
WORKFLOW = owner("argoproj.io/v1alpha1 Workflow", "nightly")
CONTROLLER = owner("v1 ReplicationController", "edges-v1")


class Example(NamedTuple):
    pod: Object
    objects: tuple[Object, ...]
    gang: str  # empty: none
    size: int = 1
    minimum: int = 1
    role: str = "replica"
    rank: int | None = None


def deployed(app: str, labels: dict[str, str] | None = None) -> Object:
    """A pod of a Deployment."""
    return pod(f"{app}-6b8d7f9c5-t2x9k", owner("apps/v1 ReplicaSet", f"{app}-6b8d7f9c5"), labels)


ALONE: dict[str, Example] = {
    "rayjob-submitter": Example(
        pod(
            "tune-9k2lx",
            owner("batch/v1 Job", "tune"),
            {"ray.io/originated-from-crd": "RayJob"},
            gpus=0,
        ),
        (),
        "",
        role="submitter",
    ),
    "spark-operator": Example(
        pod(
            "etl-driver",
            owner("sparkoperator.k8s.io/v1beta2 SparkApplication", "etl"),
            {
                "sparkoperator.k8s.io/app-name": "etl",
                "spark-app-selector": "spark-3f",
                "spark-role": "driver",
            },
        ),
        (),
        "",
        role="driver",
    ),
    "spark": Example(
        pod(
            "etl-exec-2",
            owner("v1 Pod", "etl-driver"),
            {"spark-app-selector": "spark-3f", "spark-role": "executor", "spark-exec-id": "2"},
        ),
        (),
        "",
        role="executor",
    ),
    "dask": Example(
        deployed(
            "gpu-etl-worker", {"dask.org/cluster-name": "etl", "dask.org/component": "worker"}
        ),
        (),
        "",
        role="worker",
    ),
    "mlrun": Example(pod("train-w8k2z", labels={"mlrun/class": "job"}), (), "", role="run"),
    "notebook": Example(pod("nb-0", STATEFUL, {"notebook-name": "nb"}), (), "", role="notebook"),
    "workspace": Example(
        pod("nb-0", STATEFUL, {"notebooks.kubeflow.org/workspace-name": "nb"}),
        (),
        "",
        role="notebook",
    ),
    "kubeflow-pipelines": Example(
        pod("nightly-1", WORKFLOW, {"pipeline/runid": "7159d6e5"}), (), "", role="step"
    ),
    "argo-workflow": Example(pod("nightly-1", WORKFLOW), (), "", role="step"),
    "kserve-knative": Example(
        deployed(
            "iris",
            {
                "serving.knative.dev/revision": "iris-3",
                "serving.kserve.io/inferenceservice": "iris",
                "component": "predictor",
            },
        ),
        (),
        "",
        role="predictor",
    ),
    "kserve": Example(
        deployed("llm", {"serving.kserve.io/inferenceservice": "llm", "component": "transformer"}),
        (),
        "",
        role="transformer",
    ),
    "seldon": Example(
        deployed("cifar", {"seldon-deployment-id": "cifar"}), (), "", role="predictor"
    ),
    "bentoml": Example(
        deployed(
            "bert",
            {
                "yatai.ai/bento-deployment": "bert",
                "yatai.ai/bento-deployment-component-type": "runner",
            },
        ),
        (),
        "",
        role="runner",
    ),
    "nuclio": Example(
        deployed("nuclio-face", {"nuclio.io/function-name": "face"}), (), "", role="function"
    ),
    "pachyderm": Example(
        pod("edges-v1-lk9s2", CONTROLLER, {"pipelineName": "edges", "component": "worker"}),
        (),
        "",
        role="worker",
    ),
    "dlrover": Example(
        pod(
            "job-worker-3",
            owner("elastic.iml.github.io/v1alpha1 ElasticJob", "job"),
            {
                "elasticjob.dlrover/replica-type": "worker",
                "elasticjob.dlrover/replica-index": "3",
            },
        ),
        (),
        "",
        role="worker",
    ),
    "statefulset": Example(pod("nb-0", STATEFUL), (STATEFUL,), ""),
    "deployment": Example(deployed("triton"), (), ""),
    "replicationcontroller": Example(pod("edges-v1-lk9s2", CONTROLLER), (), ""),
    "daemonset": Example(pod("dcgm-x2k8p", owner("apps/v1 DaemonSet", "dcgm")), (), ""),
    "static-pod": Example(pod("burn-n1", owner("v1 Node", "n1")), (), ""),
    "bare-pod": Example(pod("debug"), (), "", role="pod"),
    "unknown-owner": Example(
        pod("x", owner("example.com/v1 Widget", "w", {"replicas": 8})), (), "", role="pod"
    ),
}
