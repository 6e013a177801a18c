"""What the extender is given, and what it says; see extender.py for the places."""

from linkwise.topology.annotations.node_annotation import write_topology
from linkwise.topology.machine.recorded import recorded_machine
from tests.bad_input.extender import good_pod
from tests.bad_input.table import Row

GOOD_TOPOLOGY = write_topology(recorded_machine("dgx1-v100", node="other"))


POD = good_pod("body")
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
        "size too large",
        {"gang": "t", "gang-size": "4097"},
        "linkwise: linkwise.dev/gang-size: '4097': expected a whole number from 1 to 4096",
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
        "in-use is a list",
        {"topology": GOOD_TOPOLOGY, "in-use": '{"v":1,"pods":["ml/w"]}'},
        'linkwise.dev/in-use: \'{"v":1,"pods":["ml/w"]}\': expected JSON like '
        '{"v":1,"pods":{"ml/train-0":{"main":["GPU-8f…"]}}} (Expected `object`, got '
        "`array` - at `$.pods`)",
    ),
    Row(
        "HTTP body",
        "filter: empty",
        ("filter", b""),
        "200 linkwise: request body: $: expected JSON (Input data was truncated)",
    ),
    Row(
        "HTTP body",
        "filter: containers is no list",
        ("filter", {"Pod": {**POD, "spec": {"containers": {}}}, "NodeNames": []}),
        "200 linkwise: request body: $.Pod.spec.containers: expected `array`, got `object`",
    ),
    Row(
        "HTTP body",
        "prioritize: a list",
        ("prioritize", b"[]"),
        "400 linkwise: request body: $: expected `object`, got `array`",
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
)
