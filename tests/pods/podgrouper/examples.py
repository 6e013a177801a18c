"""A pod of each system in the table, as that system makes it, and what is to be said of it."""

from tests.pods.podgrouper.examples_alone import ALONE, Example
from tests.pods.podgrouper.pods import Object, owner, pod, template

TRAINING = "training.kubeflow.org/"


def expect(
    made: tuple[Object, tuple[Object, ...]],
    gang: str,
    size: int,
    minimum: int,
    role: str,
    rank: int,
) -> Example:
    return Example(*made, gang, size, minimum, role, rank)


def training(kind: str, role: str, index: int, **roles: int) -> tuple[Object, tuple[Object, ...]]:
    """A pod of one of the training operator's jobs; *roles* are replicas by role."""
    specs = {
        "TFJob": "tf",
        "PyTorchJob": "pytorch",
        "XGBoostJob": "xgb",
        "PaddleJob": "paddle",
        "JAXJob": "jax",
        "MXJob": "mx",
        "MPIJob": "mpi",
    }[kind]
    replicas = {
        name.capitalize(): {"replicas": count, "template": template()}
        for name, count in roles.items()
    }
    job = owner(f"kubeflow.org/v1 {kind}", "train", {f"{specs}ReplicaSpecs": replicas})
    labels = {
        TRAINING + "job-name": "train",
        TRAINING + "replica-type": role,
        TRAINING + "replica-index": str(index),
    }
    return pod(f"train-{role}-{index}", job, labels), (job,)


def pod_group(api_version: str, least: int, kind: str = "PodGroup") -> Object:
    return owner(f"{api_version} {kind}", "group", {"minMember": least})


def native_group(**policy: object) -> Object:
    return owner("scheduling.k8s.io/v1beta1 PodGroup", "group", {"schedulingPolicy": policy})


def job_set(by: Object | None = None) -> Object:
    job = {"spec": {"parallelism": 4, "completions": 4, "template": template()}}
    replicated = {"name": "node", "replicas": 2, "template": job}
    return owner("jobset.x-k8s.io/v1alpha2 JobSet", "train", {"replicatedJobs": [replicated]}, by)


def of_job_set() -> Object:
    labels = {
        "jobset.sigs.k8s.io/jobset-name": "train",
        "jobset.sigs.k8s.io/replicatedjob-name": "node",
        "jobset.sigs.k8s.io/job-index": "1",
        "batch.kubernetes.io/job-completion-index": "2",
    }
    return pod("train-node-1-2-x7k2p", owner("batch/v1 Job", "train-node-1"), labels)


def mpi_v2(role: str = "worker") -> tuple[Object, tuple[Object, ...]]:
    specs = {
        "Launcher": {"replicas": 1, "template": template(gpus=0)},
        "Worker": {"replicas": 2, "template": template()},
    }
    job = owner("kubeflow.org/v2beta1 MPIJob", "hvd", {"mpiReplicaSpecs": specs})
    labels = {
        TRAINING + "operator-name": "mpi-operator",
        TRAINING + "job-name": "hvd",
        TRAINING + "job-role": role,
        TRAINING + "replica-index": "1",
    }
    return pod("hvd-worker-1", job, labels), (job,)


INDEXED = owner(
    "batch/v1 Job",
    "shards",
    {"parallelism": 4, "completions": 4, "completionMode": "Indexed", "template": template()},
)
INDEX = "batch.kubernetes.io/job-completion-index"
RAY = owner(
    "ray.io/v1 RayCluster",
    "rl",
    {
        "headGroupSpec": {"template": template(gpus=0)},
        "workerGroupSpecs": [{"groupName": "a100", "replicas": 3, "template": template()}],
    },
)
KSERVE = owner("serving.kserve.io/v1beta1 InferenceService", "llm")
KSERVE_WORKERS = owner(
    "apps/v1 Deployment", "llm-predictor-worker", {"replicas": 3, "template": template()}, KSERVE
)
LWS = owner(
    "leaderworkerset.x-k8s.io/v1 LeaderWorkerSet",
    "vllm",
    {"leaderWorkerTemplate": {"size": 4, "workerTemplate": template()}},
)
LWS_LABELS = {
    "leaderworkerset.sigs.k8s.io/name": "vllm",
    "leaderworkerset.sigs.k8s.io/group-index": "1",
    "leaderworkerset.sigs.k8s.io/worker-index": "2",
}
VOLCANO_JOB = owner(
    "batch.volcano.sh/v1alpha1 Job",
    "tf",
    {
        "minAvailable": 3,
        "tasks": [
            {"name": "ps", "replicas": 1, "template": template(gpus=0)},
            {"name": "worker", "replicas": 4, "template": template()},
        ],
    },
)
WORKLOAD = owner(
    "scheduling.k8s.io/v1alpha1 Workload",
    "lm",
    {"podGroups": [{"name": "workers", "policy": {"gang": {"minCount": 4}}}]},
)
OLD_MPI = owner(
    "kubeflow.org/v1alpha1 MPIJob",
    "old",
    {"gpus": 16, "gpusPerNode": 8, "template": template(gpus=0)},
)
OLD_MPI_LABELS = {"group_name": "kubeflow.org", "mpi_job_name": "old", "mpi_role_type": "worker"}

POD_GANG = owner(
    "scheduler.grove.io/v1alpha1 PodGang",
    "group",
    {
        "podgroups": [
            {"name": "group-prefill", "podReferences": [], "minReplicas": 1},
            {"name": "group-decode", "podReferences": [], "minReplicas": 4},
        ]
    },
)
POD_SET = owner(
    "orchestration.aibrix.ai/v1alpha1 PodSet",
    "decode-0",
    {"podGroupSize": 2, "template": template()},
)

MODEL_SERVING = owner(
    "workload.serving.volcano.sh/v1alpha1 ModelServing",
    "llm",
    {
        "replicas": 2,
        "schedulerName": "default-scheduler",
        "template": {
            "roles": [
                {"name": "prefill", "replicas": 3, "entryTemplate": template()},
                {
                    "name": "decode",
                    "replicas": 2,
                    "workerReplicas": 3,
                    "entryTemplate": template(),
                    "workerTemplate": template(),
                },
            ]
        },
    },
)


def nodes_of_one_server(name: str, command: list[str], size: int = 2, **spec: object) -> Object:
    """A StatefulSet as KAITO makes it, and as people write it for SGLang."""
    made = template(gpus=8)
    made["spec"]["containers"][0]["command"] = command
    said = {"replicas": size, "podManagementPolicy": "Parallel", "template": made, **spec}
    return owner("apps/v1 StatefulSet", name, said)


SGLANG = nodes_of_one_server(
    "r1", ["python3", "-m", "sglang.launch_server", "--nnodes", "2", "--node-rank", "$(POD_INDEX)"]
)

GANGS: dict[str, Example] = {
    "native-pod-group": Example(
        pod("lm-0", schedulingGroup={"podGroupName": "group"}),
        (native_group(gang={"minCount": 4}),),
        "ml/PodGroup.scheduling.k8s.io/group",
        4,
        4,
        "pod",
    ),
    "native-workload": Example(
        pod("lm-0", workloadRef={"name": "lm", "podGroup": "workers", "podGroupReplicaKey": "2"}),
        (WORKLOAD,),
        "ml/Workload.scheduling.k8s.io/lm#workers-2",
        4,
        4,
        "pod",
    ),
    "kueue": Example(
        pod(
            "w-1",
            labels={
                "kueue.x-k8s.io/pod-group-name": "dist",
                "kueue.x-k8s.io/pod-group-pod-index": "1",
            },
            annotations={"kueue.x-k8s.io/pod-group-total-count": "3"},
        ),
        (),
        "ml/kueue-pod-group/dist",
        3,
        3,
        "pod",
        1,
    ),
    "koordinator": Example(
        pod(
            "w",
            annotations={
                "gang.scheduling.koordinator.sh/name": "g",
                "gang.scheduling.koordinator.sh/min-available": "2",
                "gang.scheduling.koordinator.sh/total-number": "5",
            },
        ),
        (),
        "ml/koordinator-gang/g",
        5,
        2,
        "pod",
    ),
    "yunikorn": Example(
        pod(
            "w",
            labels={"applicationId": "app-7"},
            annotations={
                "yunikorn.apache.org/task-group-name": "workers",
                "yunikorn.apache.org/task-groups": '[{"name":"head","minMember":1},'
                '{"name":"workers","minMember":3,"minResource":{"cpu":"1"}}]',
            },
        ),
        (),
        "ml/yunikorn-application/app-7",
        4,
        4,
        "workers",
    ),
    "coscheduling-labels": Example(
        pod(
            "w",
            labels={
                "pod-group.scheduling.sigs.k8s.io/name": "g",
                "pod-group.scheduling.sigs.k8s.io/min-available": "3",
            },
        ),
        (),
        "ml/pod-group/g",
        3,
        3,
        "pod",
    ),
    "coscheduling": Example(
        pod("w", labels={"scheduling.x-k8s.io/pod-group": "group"}),
        (pod_group("scheduling.x-k8s.io/v1alpha1", 4),),
        "ml/PodGroup.scheduling.x-k8s.io/group",
        4,
        4,
        "pod",
    ),
    "volcano-pod-group": Example(
        pod("w", annotations={"scheduling.k8s.io/group-name": "group"}),
        (pod_group("scheduling.volcano.sh/v1beta1", 4),),
        "ml/PodGroup.scheduling.volcano.sh/group",
        4,
        4,
        "pod",
    ),
    "kai": Example(
        pod("w", annotations={"pod-group-name": "group"}),
        (pod_group("scheduling.run.ai/v2alpha2", 4),),
        "ml/PodGroup.scheduling.run.ai/group",
        4,
        4,
        "pod",
    ),
    "grove": Example(
        pod("w", labels={"grove.io/podgang": "group", "grove.io/podclique": "group-decode"}),
        (POD_GANG,),
        "ml/PodGang.scheduler.grove.io/group",
        5,
        5,
        "pod",
    ),
    "podset": Example(
        pod(
            "decode-0-1",
            POD_SET,
            {
                "stormservice.orchestration.aibrix.ai/pod-group-index": "1",
                "role-name": "decode",
            },
        ),
        (POD_SET,),
        "ml/PodSet.orchestration.aibrix.ai/decode-0",
        2,
        2,
        "decode",
        1,
    ),
    "modelserving": Example(
        pod(
            "llm-1-decode-0-2",
            MODEL_SERVING,
            {
                "modelserving.volcano.sh/name": "llm",
                "modelserving.volcano.sh/group-name": "llm-1",
                "modelserving.volcano.sh/role": "decode",
                "modelserving.volcano.sh/role-id": "decode-0",
            },
        ),
        (MODEL_SERVING,),
        "ml/ModelServing.workload.serving.volcano.sh/llm#llm-1-decode-0",
        4,
        4,
        "decode",
        2,
    ),
    "statefulset-nodes": Example(
        pod("r1-1", SGLANG, {"apps.kubernetes.io/pod-index": "1"}, gpus=8),
        (SGLANG,),
        "ml/StatefulSet.apps/r1",
        2,
        2,
        "node",
        1,
    ),
    "tfjob": expect(
        training("TFJob", "worker", 3, chief=1, ps=2, worker=4),
        "ml/TFJob.kubeflow.org/train",
        7,
        7,
        "worker",
        4,
    ),
    "pytorchjob": expect(
        training("PyTorchJob", "worker", 2, master=1, worker=3),
        "ml/PyTorchJob.kubeflow.org/train",
        4,
        4,
        "worker",
        3,
    ),
    "xgboostjob": expect(
        training("XGBoostJob", "worker", 0, master=1, worker=2),
        "ml/XGBoostJob.kubeflow.org/train",
        3,
        3,
        "worker",
        1,
    ),
    "paddlejob": expect(
        training("PaddleJob", "worker", 1, worker=2),
        "ml/PaddleJob.kubeflow.org/train",
        2,
        2,
        "worker",
        1,
    ),
    "jaxjob": expect(
        training("JAXJob", "worker", 7, worker=8),
        "ml/JAXJob.kubeflow.org/train",
        8,
        8,
        "worker",
        7,
    ),
    "mxjob": expect(
        training("MXJob", "worker", 1, scheduler=1, server=2, worker=3),
        "ml/MXJob.kubeflow.org/train",
        6,
        6,
        "worker",
        4,
    ),
    "mpijob-v1": expect(
        training("MPIJob", "worker", 1, worker=2),
        "ml/MPIJob.kubeflow.org/train",
        2,
        2,
        "worker",
        1,
    ),
    "mpijob-v2beta1": expect(mpi_v2(), "ml/MPIJob.kubeflow.org/hvd", 3, 3, "worker", 1),
    "mpijob-v1alpha1": Example(
        pod("old-worker-1", owner("apps/v1 StatefulSet", "old-worker"), OLD_MPI_LABELS),
        (OLD_MPI,),
        "ml/MPIJob.kubeflow.org/old",
        3,
        3,
        "worker",
        1,
    ),
    "trainjob": Example(
        of_job_set(),
        (job_set(by=owner("trainer.kubeflow.org/v1alpha1 TrainJob", "train")),),
        "ml/JobSet.jobset.x-k8s.io/train",
        8,
        8,
        "node",
        6,
    ),
    "jobset": Example(
        of_job_set(), (job_set(),), "ml/JobSet.jobset.x-k8s.io/train", 8, 8, "node", 6
    ),
    "volcano-job": Example(
        pod(
            "tf-worker-1",
            VOLCANO_JOB,
            {"volcano.sh/task-spec": "worker", "volcano.sh/task-index": "1"},
            {"scheduling.k8s.io/group-name": "tf-1a82815b"},
        ),
        (VOLCANO_JOB,),
        "ml/Job.batch.volcano.sh/tf",
        5,
        3,
        "worker",
        2,
    ),
    "leaderworkerset": Example(
        pod(
            "vllm-1-2",
            owner("apps/v1 StatefulSet", "vllm-1"),
            LWS_LABELS,
            {"leaderworkerset.sigs.k8s.io/size": "4"},
        ),
        (LWS,),
        "ml/LeaderWorkerSet.leaderworkerset.x-k8s.io/vllm#1",
        4,
        4,
        "worker",
        2,
    ),
    "raycluster": Example(
        pod(
            "rl-a100-worker-k2x9d",
            RAY,
            {
                "ray.io/node-type": "worker",
                "ray.io/group": "a100",
                "ray.io/worker-group-replica-index": "2",
            },
        ),
        (RAY,),
        "ml/RayCluster.ray.io/rl",
        4,
        4,
        "worker",
        2,
    ),
    "kserve-multi-node": Example(
        pod(
            "llm-predictor-6b8d7f9c5-t2x9k",
            owner("apps/v1 ReplicaSet", "llm-predictor-6b8d7f9c5"),
            {
                "app": "isvc.llm-predictor",
                "component": "predictor",
                "serving.kserve.io/inferenceservice": "llm",
                "isvc.generation": "1",
            },
        ),
        (KSERVE_WORKERS,),
        "ml/InferenceService.serving.kserve.io/llm#1",
        4,
        4,
        "head",
        0,
    ),
    "job": Example(
        pod("shards-3-9qd4w", INDEXED, {INDEX: "3"}),
        (INDEXED,),
        "ml/Job.batch/shards",
        4,
        4,
        "worker",
        3,
    ),
}

EXAMPLES = {**GANGS, **ALONE}
