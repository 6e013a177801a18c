"""What the extender is given, and what it says; see extender.py for the places."""

import json

from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.machine.recorded import recorded_machine
from tests.bad_input.extender import good_pod
from tests.bad_input.table import Row

GOOD_TOPOLOGY = write_topology(recorded_machine("dgx1-v100", node="other"))


def _topology(**changes: object) -> dict[str, str]:
    return {"topology": json.dumps({**json.loads(GOOD_TOPOLOGY), **changes})}


GPU_A = ["GPU-a", 0, 0]
MODEL = [["T4", 15360]]
POD = good_pod("body")
NAMELESS = {"metadata": {"namespace": "ml", "uid": "u"}}
_NEVER = "room for 0 of 1 members; not for enough of them, even without other pods"
PLAN = '{"v":1,"id":"p","node":"n2"}'

ROWS = (
    Row(
        "pod annotation",
        "unknown key",
        {"gang-sizes": "4"},
        "linkwise: linkwise.dev/gang-sizes: no such annotation: expected linkwise.dev/gang-size",
    ),
    Row(
        "pod annotation",
        "unknown key that is like none",
        {"colour": "red"},
        "linkwise: linkwise.dev/colour: no such annotation: expected linkwise.dev/ and one of "
        "communicator, expected-duration, gang, gang-min, gang-size, gang-timeout, gpu-memory, "
        "gpu-model, preemptible, prefer-link, prefer-span, rank, reclaim-when-idle, require-link, "
        "require-span, share",
    ),
    Row(
        "pod annotation",
        "minimum above the size",
        {"gang": "t", "gang-size": "4", "gang-min": "5"},
        "linkwise: linkwise.dev/gang-min: '5': expected a whole number from 1 to 4, the "
        "linkwise.dev/gang-size",
    ),
    Row(
        "pod annotation",
        "minimum without gang",
        {"gang-min": "2"},
        "linkwise: linkwise.dev/gang-min: '2': expected linkwise.dev/gang beside it, "
        "with a gang's name",
    ),
    Row(
        "pod annotation",
        "span in words",
        {"require-span": "the same rack"},
        "linkwise: linkwise.dev/require-span: 'the same rack': expected node, clique or keys of "
        "node labels, with commas between them",
    ),
    Row(
        "pod annotation",
        "list of spans with a hole",
        {"prefer-span": "clique,"},
        "linkwise: linkwise.dev/prefer-span: 'clique,': expected node, clique or keys of "
        "node labels, with commas between them",
    ),
    Row(
        "pod annotation",
        "idle for a number without a unit",
        {"reclaim-when-idle": "4"},
        "linkwise: linkwise.dev/reclaim-when-idle: '4': expected a duration like 4h, or never",
    ),
    Row(
        "pod annotation",
        "idle for no time",
        {"reclaim-when-idle": "0h"},
        "linkwise: linkwise.dev/reclaim-when-idle: '0h': expected a duration like 4h, or never",
    ),
    Row(
        "pod annotation",
        "preemptible, in YAML's other word",
        {"preemptible": "yes"},
        "linkwise: linkwise.dev/preemptible: 'yes': expected true or false",
    ),
    Row(
        "pod annotation",
        "share in NVIDIA's word",
        {"share": "packed"},
        "linkwise: linkwise.dev/share: 'packed': expected spread or pack",
    ),
    Row(
        "pod annotation",
        "duration in seconds",
        {"expected-duration": "3600"},
        "linkwise: linkwise.dev/expected-duration: '3600': expected a duration like 10m, 1h30m "
        "or 90s",
    ),
    Row(
        "pod annotation",
        "gang without size",
        {"gang": "train"},
        "linkwise: linkwise.dev/gang: 'train': expected linkwise.dev/gang-size beside "
        "it, with the number of members",
    ),
    Row(
        "pod annotation",
        "size without gang",
        {"gang-size": "4"},
        "linkwise: linkwise.dev/gang-size: '4': expected linkwise.dev/gang beside it, "
        "with a gang's name",
    ),
    Row(
        "pod annotation",
        "size in words",
        {"gang": "t", "gang-size": "four"},
        "linkwise: linkwise.dev/gang-size: 'four': expected a whole number from 1 to 4096",
    ),
    Row(
        "pod annotation",
        "size 0",
        {"gang": "t", "gang-size": "0"},
        "linkwise: linkwise.dev/gang-size: '0': expected a whole number from 1 to 4096",
    ),
    Row(
        "pod annotation",
        "size too large",
        {"gang": "t", "gang-size": "4097"},
        "linkwise: linkwise.dev/gang-size: '4097': expected a whole number from 1 to 4096",
    ),
    Row(
        "pod annotation",
        "gang without a name",
        {"gang": "  ", "gang-size": "2"},
        "linkwise: linkwise.dev/gang: '  ': expected a name of 1 to 253 characters that can be "
        "printed",
    ),
    Row(
        "pod annotation",
        "timeout without unit",
        {"gang": "t", "gang-size": "2", "gang-timeout": "600"},
        "linkwise: linkwise.dev/gang-timeout: '600': expected a duration like 10m, 1h30m or 90s",
    ),
    Row(
        "pod annotation",
        "negative rank",
        {"rank": "-1"},
        "linkwise: linkwise.dev/rank: '-1': expected a whole number from 0",
    ),
    Row(
        "pod annotation",
        "link in nvidia-smi's words",
        {"require-link": "NV12"},
        "linkwise: linkwise.dev/require-link: 'NV12': expected one of nvlink, switch, "
        "host-bridge, numa, node",
    ),
    Row(
        "pod annotation",
        "empty link",
        {"prefer-link": ""},
        "linkwise: linkwise.dev/prefer-link: '': expected one of nvlink, switch, "
        "host-bridge, numa, node",
    ),
    Row(
        "pod annotation",
        "memory in GB of no kind",
        {"gpu-memory": "40 gigs"},
        "linkwise: linkwise.dev/gpu-memory: '40 gigs': expected a quantity like 40Gi",
    ),
    Row(
        "pod annotation",
        "model list with a hole",
        {"gpu-model": "H100,,H200"},
        "linkwise: linkwise.dev/gpu-model: 'H100,,H200': expected model names like H100,H200",
    ),
    Row(
        "pod annotation",
        "very long value",
        {"rank": "9" * 5000},
        "linkwise: linkwise.dev/rank: "
        "'999999999999999999999999999999999999999999999999999999999...': expected at "
        "most 1024 characters",
    ),
    Row(
        "pod quantity",
        "GPUs in words",
        "two",
        'linkwise: nvidia.com/gpu: \'two\': expected a quantity like 8, "500m" or "64Gi"',
    ),
    Row(
        "pod quantity",
        "GPUs beyond all numbers",
        "1e999999999",
        "linkwise: nvidia.com/gpu: 9223372036854775807 in one pod: expected 112 at most, as no "
        "machine has more; a job on several machines needs several pods",
    ),
    Row("memory", "more than Kubernetes counts", "16Ei", _NEVER),
    Row("memory", "more than anybody counts", "1e300", _NEVER),
    Row("plan", "no GPUs at all", {"gpus": "{}", "plan": PLAN}, "bound; 2 GPUs count as taken"),
    Row("plan", "gpus is no JSON", {"gpus": "GPU-a", "plan": PLAN}, "bound; 2 GPUs count as taken"),
    Row(
        "plan",
        "gpus of no machine",
        {"gpus": '{"main":["GPU-x","GPU-y"]}', "plan": PLAN},
        "bound; 2 GPUs count as taken",
    ),
    Row(
        "plan",
        "plan of a newer version",
        {"gpus": "{}", "plan": '{"v":9}'},
        "bound; 2 GPUs count as taken",
    ),
    Row(
        "plan",
        "plan of another node",
        {"gpus": "{}", "plan": PLAN.replace("n2", "n1")},
        "bound; 2 GPUs count as taken",
    ),
    Row(
        "node annotation",
        "topology is no JSON",
        {"topology": "8 GPUs"},
        "linkwise.dev/topology: '8 GPUs': expected JSON as the plugin writes it "
        "(Expected `object`, got `int`)",
    ),
    Row(
        "node annotation",
        "topology cut off",
        {"topology": GOOD_TOPOLOGY[:200]},
        'linkwise.dev/topology: \'{"v":1,"models":[["Tesla '
        'V100-SXM2",16384,[7,0]]],"gpus":...\': expected JSON as the plugin writes it '
        "(Input data was truncated)",
    ),
    Row(
        "node annotation",
        "newer version",
        {"topology": '{"v":2,"islands":[]}'},
        "linkwise.dev/topology: 'version 2': expected version 1 or older; upgrade this program",
    ),
    Row(
        "node annotation",
        "no GPUs",
        _topology(gpus=[], links=[]),
        "linkwise.dev/topology: machine: 0 GPUs: expected 1 to 16",
    ),
    Row(
        "node annotation",
        "rows of links missing",
        _topology(links=["NV1/SYS"]),
        'linkwise.dev/topology: \'{"v": 1, "models": [["Tesla V100-SXM2", 16384, [7, '
        "0]]], ...': expected 7 rows of links",
    ),
    Row(
        "node annotation",
        "unknown link word",
        _topology(models=MODEL, gpus=[GPU_A, ["GPU-b", 1, 0]], links=["FAST"]),
        "linkwise.dev/topology: links, row 0: 'FAST': expected SYS, NODE, PHB, PXB or PIX",
    ),
    Row(
        "node annotation",
        "one uuid twice",
        _topology(models=MODEL, gpus=[GPU_A, ["GPU-a", 1, 0]], links=["SYS"]),
        "linkwise.dev/topology: machine: uuid GPU-a on two GPUs",
    ),
    Row(
        "node annotation",
        "model that is not listed",
        _topology(gpus=[["GPU-a", 0, 7]], links=[]),
        "linkwise.dev/topology: GPU 0: model 7: expected a place in models, 0 to 0",
    ),
    Row(
        "node annotation",
        "in-use is a list",
        {"topology": GOOD_TOPOLOGY, "in-use": '{"v":1,"pods":["ml/w"]}'},
        'linkwise.dev/in-use: \'{"v":1,"pods":["ml/w"]}\': expected JSON like '
        '{"v":1,"pods":{"ml/train-0":{"main":["GPU-8f…"]}}} (Expected `object`, got '
        "`array` - at `$.pods`)",
    ),
    Row(
        "node annotation",
        "in-use of a newer version",
        {"topology": GOOD_TOPOLOGY, "in-use": '{"v":2}'},
        "linkwise.dev/in-use: 'version 2': expected version 1 or older; upgrade this program",
    ),
    Row(
        "HTTP body",
        "filter: empty",
        ("filter", b""),
        "200 linkwise: request body: $: expected JSON (Input data was truncated)",
    ),
    Row(
        "HTTP body",
        "filter: cut off",
        ("filter", json.dumps({"Pod": POD}).encode()[:-9]),
        "200 linkwise: request body: $: expected JSON (Input data was truncated)",
    ),
    Row(
        "HTTP body",
        "filter: no pod",
        ("filter", {"NodeNames": ["n1"]}),
        "200 linkwise: request body: $.Pod: expected `object`, got `null`",
    ),
    Row(
        "HTTP body",
        "filter: no nodes",
        ("filter", {"Pod": POD}),
        "200 linkwise: request body: $.NodeNames: expected a list of node names (or "
        "Nodes, with items)",
    ),
    Row(
        "HTTP body",
        "filter: a node that is a number",
        ("filter", {"Pod": POD, "NodeNames": [1]}),
        "200 linkwise: request body: $.NodeNames[0]: expected `str`, got `int`",
    ),
    Row(
        "HTTP body",
        "filter: containers is no list",
        ("filter", {"Pod": {**POD, "spec": {"containers": {}}}, "NodeNames": []}),
        "200 linkwise: request body: $.Pod.spec.containers: expected `array`, got `object`",
    ),
    Row(
        "HTTP body",
        "filter: not UTF-8",
        ("filter", b'{"Pod": "\xff"}'),
        "200 linkwise: request body: $.Pod: expected `object`, got `str`",
    ),
    Row(
        "HTTP body",
        "filter: 100,000 brackets",
        ("filter", b"[" * 100_000),
        "200 linkwise: request body: $: expected `object`, got `array`",
    ),
    Row(
        "HTTP body",
        "prioritize: a list",
        ("prioritize", b"[]"),
        "400 linkwise: request body: $: expected `object`, got `array`",
    ),
    Row(
        "HTTP body",
        "prioritize: pod without a name",
        ("prioritize", {"Pod": NAMELESS, "NodeNames": []}),
        "400 linkwise: request body: $.Pod.metadata.name: expected the pod's name",
    ),
    Row(
        "HTTP body",
        "bind: no uid",
        ("bind", {"PodNamespace": "ml", "PodName": "w"}),
        "200 linkwise: request body: $.PodUID: expected a text that is not empty",
    ),
    Row(
        "HTTP body",
        "bind: a pod that is not there",
        ("bind", {"PodNamespace": "ml", "PodName": "w", "PodUID": "u", "Node": "n1"}),
        "200 linkwise: pod ml/w is not known yet",
    ),
    Row(
        "HTTP body",
        "preempt: victims are a list",
        ("preempt", {"Pod": POD, "NodeNameToMetaVictims": []}),
        "400 linkwise: request body: $.NodeNameToMetaVictims: expected `object`, got `array`",
    ),
    Row(
        "HTTP body",
        "preempt: victim without uid",
        ("preempt", {"Pod": POD, "NodeNameToMetaVictims": {"n1": {"Pods": [{}]}}}),
        "400 linkwise: request body: $.NodeNameToMetaVictims.n1.Pods[0].UID: expected a "
        "text that is not empty",
    ),
)
