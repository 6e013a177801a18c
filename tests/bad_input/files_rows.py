"""What people hand over, and the message they get; see files.py for the places."""

import json

from linkwise.topology.machine.recorded import machine_names
from tests.bad_input.files import POD, TABLE
from tests.bad_input.table import Row

JOB = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: train
spec:
  template:
    spec:
      restartPolicy: Never
      containers: [{name: main, image: x}]
"""


def _machine(**changes: object) -> str:
    gpus = [{"index": n, "model": "Tesla T4", "numa": 0} for n in range(2)]
    machine = {"title": "t", "kind": "real", "source": "s", "gpus": gpus, **changes}
    return json.dumps({"machines": {"m": machine}})


UNKNOWN_MACHINE = (
    f"1 Error: machine 'dgx9': not known: expected one of: {', '.join(machine_names())}"
)
CHOOSE = ("linkwise", "choose", "--machine", "dgx1-v100")
EXTENDER = ("linkwise-extender", "--api-server", "http://127.0.0.1:9")
PLUGIN = ("linkwise-plugin", "--node-name", "n1", "--api-server", "http://127.0.0.1:9")

ROWS = (
    Row(
        "command line",
        "no such machine",
        ("linkwise", "choose", "--machine", "dgx9", "--size", "1"),
        "2 linkwise: --machine dgx9: no such file, and no recorded machine of that name; "
        "see `linkwise machines`",
    ),
    Row(
        "command line",
        "size in words",
        (*CHOOSE, "--size", "two"),
        "2 linkwise: Invalid value for '--size': 'two' is not a valid integer range.",
    ),
    Row(
        "command line",
        "size 0",
        (*CHOOSE, "--size", "0"),
        "2 linkwise: Invalid value for '--size': 0 is not in the range x>=1.",
    ),
    Row(
        "command line",
        "GPU list that is none",
        (*CHOOSE, "--size", "1", "--free", "0,,2"),
        "2 linkwise: --free '0,,2': '': expected GPU indices like 0,2,5-7",
    ),
    Row(
        "command line",
        "GPU list backwards",
        (*CHOOSE, "--size", "1", "--free", "5-2"),
        "2 linkwise: --free 5-2: 5-2: expected 2-5",
    ),
    Row(
        "command line",
        "GPU that is not there",
        (*CHOOSE, "--size", "1", "--free", "0-8"),
        "2 linkwise: --free 0-8: no GPU 8: the machine has 0-7",
    ),
    Row(
        "command line",
        "must not free",
        (*CHOOSE, "--size", "2", "--free", "0-3", "--must", "7"),
        "2 linkwise: --must 7: GPUs 7 are not free",
    ),
    Row(
        "command line",
        "unknown link word",
        (*CHOOSE, "--size", "2", "--require-link", "pix"),
        "2 linkwise: Invalid value for '--require-link': 'pix' is not one of 'nvlink', "
        "'switch', 'host-bridge', 'numa', 'node'.",
    ),
    Row(
        "command line",
        "extender: timeout in words",
        (*EXTENDER, "--gang-timeout", "soon"),
        "2 Error: Invalid value for '--gang-timeout': 'soon': expected a duration like "
        "10m, 1h30m or 90s",
    ),
    Row(
        "command line",
        "extender: resource without domain",
        (*EXTENDER, "--resource-name", "gpu"),
        "2 linkwise-extender: --resource-name gpu: expected like nvidia.com/gpu",
    ),
    Row(
        "command line",
        "extender: no kubeconfig",
        ("linkwise-extender", "--kubeconfig", "/no/such"),
        "2 linkwise-extender: kubeconfig /no/such: Invalid kube-config file. No "
        "configuration found.",
    ),
    Row(
        "command line",
        "extender: server without scheme",
        ("linkwise-extender", "--api-server", "k8s:6443"),
        "2 linkwise-extender: --api-server k8s:6443: expected a URL like http://127.0.0.1:8001",
    ),
    Row(
        "command line",
        "plugin: no node name",
        ("linkwise-plugin",),
        "2 Error: Missing option '--node-name'.",
    ),
    Row("command line", "plugin: no such machine", (*PLUGIN, "--machine", "dgx9"), UNKNOWN_MACHINE),
    Row(
        "command line",
        "plugin: two machines",
        (*PLUGIN, "--machine", "dgx-a100", "--machine-file", "x"),
        "1 Error: --machine, --machine-file and --machine-from-label: expected one of them",
    ),
    Row(
        "command line",
        "plugin: no such file",
        (*PLUGIN, "--machine-file", "/no/such"),
        "1 Error: machine file /no/such: No such file or directory",
    ),
    Row(
        "command line",
        "plugin: port",
        (*PLUGIN, "--machine", "dgx-a100", "--listen-port", "70000"),
        "2 Error: Invalid value for '--listen-port': 70000 is not in the range 0<=x<=65535.",
    ),
    Row(
        "command line",
        "plugin: resource without domain",
        (*PLUGIN, "--machine", "dgx-a100", "--resource-name", "gpu"),
        "2 Error: Invalid value for '--resource-name': 'gpu': expected domain/name, like "
        "nvidia.com/gpu",
    ),
    Row(
        "machine file",
        "empty",
        "",
        "linkwise: --machine FILE: table: no text: expected what `nvidia-smi topo -m` prints",
    ),
    Row(
        "machine file",
        "cut off",
        _machine()[:60],
        "linkwise: --machine FILE: machines file: Input data was truncated",
    ),
    Row(
        "machine file",
        "no text",
        b"\x89PNG\r\n\x1a\n\xff",
        "linkwise: --machine FILE: not text: 'utf-8' codec can't decode byte 0x89 in "
        "position 0: invalid start byte",
    ),
    Row(
        "machine file",
        "no machines",
        '{"machines":{}}',
        "linkwise: --machine FILE: machines file: no machine in it: expected one or more",
    ),
    Row(
        "machine file",
        "GPUs missing",
        '{"machines":{"m":{"title":"t","kind":"real","source":"s"}}}',
        "linkwise: --machine FILE: machines file: Object missing required field `gpus` - "
        "at `$.machines[...]`",
    ),
    Row(
        "machine file",
        "no GPUs",
        _machine(gpus=[]),
        "linkwise: --machine FILE: machine 'm': machine: 0 GPUs: expected 1 to 16",
    ),
    Row(
        "machine file",
        "one index twice",
        _machine(gpus=[{"index": 0, "model": "T4"}] * 2),
        "linkwise: --machine FILE: machine 'm': machine: GPU indices [0, 0]: expected "
        "rising, each once",
    ),
    Row(
        "machine file",
        "asymmetric links",
        _machine(links=[["X", "NV4"], ["NV2", "X"]]),
        "linkwise: --machine FILE: machine 'm': links, row GPU0, column GPU1: 'NV4', but "
        "links, row GPU1, column GPU0: 'NV2': expected the same both ways",
    ),
    Row(
        "machine file",
        "a row too short",
        _machine(links=[["X", "NV4"], ["NV4"]]),
        "linkwise: --machine FILE: machine 'm': links, row GPU1: 1 cells: expected 2",
    ),
    Row(
        "machine file",
        "pci bus id",
        _machine(gpus=[{"index": 0, "model": "T4", "pci_bus_id": "1a:00"}]),
        "linkwise: --machine FILE: machine 'm': GPU 0: PCI bus id '1a:00': expected like "
        "0000:1a:00.0",
    ),
    Row(
        "machine file",
        "NIC with an entry too many",
        _machine(nics={"mlx5_0": ["PIX"] * 3}),
        "linkwise: --machine FILE: machine 'm': machine: NIC mlx5_0: 3 entries: expected 2",
    ),
    Row(
        "topo -m table",
        "no table",
        "NVIDIA-SMI has failed\n",
        "linkwise: --machine FILE: table: none in 'NVIDIA-SMI has failed': expected what "
        "`nvidia-smi topo -m` prints",
    ),
    Row(
        "topo -m table",
        "asymmetric links",
        TABLE.replace("GPU1  NV4", "GPU1  NV2"),
        "linkwise: --machine FILE: links, row GPU0, column GPU1: 'NV4', but links, row "
        "GPU1, column GPU0: 'NV2': expected the same both ways",
    ),
    Row(
        "topo -m table",
        "unknown word",
        TABLE.replace("NV4", "NVX"),
        "linkwise: --machine FILE: table, row GPU0, column GPU1: 'NVX': expected X, SYS, "
        "NODE, PHB, PXB, PIX or NV and a number",
    ),
    Row(
        "topo -m table",
        "a row missing",
        TABLE.partition("GPU1  NV4")[0],
        "linkwise: --machine FILE: table: no row GPU1: expected a row for every GPU column",
    ),
    Row(
        "topo -m table",
        "a cell missing",
        TABLE.replace("GPU0   X    NV4   0-15          0", "GPU0   X"),
        "linkwise: --machine FILE: table, row GPU0, column GPU1: missing: expected a cell",
    ),
    Row(
        "topo -m table",
        "NUMA in words",
        TABLE.replace("0-15          0\nGPU1", "0-15  zero\nGPU1"),
        "linkwise: --machine FILE: table, row GPU0, column NUMA Affinity: 'zero': "
        "expected nodes like 3, 0-1 or N/A",
    ),
    Row(
        "topo -m table",
        "100 NVLinks",
        TABLE.replace("NV4", "NV99"),
        "linkwise: --machine FILE: links, row GPU0, column GPU1: 'NV99': expected NV1 to NV36",
    ),
    Row(
        "manifest",
        "empty",
        "",
        "linkwise-simulator: jobs.yaml:1: no object in it: expected a Pod or a workload",
    ),
    Row(
        "manifest",
        "no YAML",
        POD + "  image: [",
        "linkwise-simulator: jobs.yaml:12: document 1: expected the node content, but "
        "found '<stream end>'",
    ),
    Row(
        "manifest",
        "tab",
        POD.replace("  name: one", "\tname: one"),
        "linkwise-simulator: jobs.yaml:4: document 1: found character '\\t' that cannot "
        "start any token",
    ),
    Row(
        "manifest",
        "another kind",
        POD.replace("Pod", "Deployment"),
        "linkwise-simulator: jobs.yaml:1: document 1: apiVersion: 'v1': expected apps/v1 for a "
        "Deployment",
    ),
    Row(
        "manifest",
        "kind missing",
        POD.replace("kind: Pod\n", ""),
        "linkwise-simulator: jobs.yaml:1: document 1: kind: missing: expected Pod, Job or another",
    ),
    Row(
        "manifest",
        "name in capitals",
        POD.replace("name: one", "name: One"),
        "linkwise-simulator: jobs.yaml:4: document 1: metadata.name: 'One': expected "
        "lower-case letters, digits, - and ., at most 253",
    ),
    Row(
        "manifest",
        "annotation without quotes",
        POD.replace("  name: one", "  name: one\n  annotations:\n    linkwise.dev/gang-size: 4"),
        "linkwise-simulator: jobs.yaml:6: document 1: "
        "metadata.annotations[linkwise.dev/gang-size]: 4: expected a text: write it in "
        'quotes, "4"',
    ),
    Row(
        "manifest",
        "half a GPU",
        POD.replace("gpu: 2", "gpu: 0.5"),
        "linkwise-simulator: jobs.yaml:11: document 1: "
        "spec.containers[0].resources.limits[nvidia.com/gpu]: 0.5: expected a whole "
        "number of devices",
    ),
    Row(
        "manifest",
        "GPUs in words",
        POD.replace("gpu: 2", "gpu: two"),
        "linkwise-simulator: jobs.yaml:11: document 1: "
        "spec.containers[0].resources.limits[nvidia.com/gpu]: 'two': expected a quantity "
        'like 8, "500m" or "64Gi"',
    ),
    Row(
        "manifest",
        "negative GPUs",
        POD.replace("gpu: 2", "gpu: -2"),
        "linkwise-simulator: jobs.yaml:11: document 1: "
        "spec.containers[0].resources.limits[nvidia.com/gpu]: -2: expected 0 or more",
    ),
    Row(
        "manifest",
        "containers is a mapping",
        POD.replace("    - name: main\n      image", "      name: main\n      image"),
        "linkwise-simulator: jobs.yaml:6: document 1: spec.containers: a mapping: "
        "expected a list: at least one container",
    ),
    Row(
        "manifest",
        "one key twice",
        POD.replace("  name: one", "  name: one\n  name: two"),
        "linkwise-simulator: jobs.yaml:5: document 1: metadata.name: this key stands here twice",
    ),
    Row(
        "manifest",
        "the second document",
        f"{POD}---\n{JOB.replace('Never', 'Always')}",
        "linkwise-simulator: jobs.yaml:20: document 2: spec.template.spec.restartPolicy: "
        "'Always': expected Never or OnFailure in a Job",
    ),
    Row(
        "manifest",
        "one name twice",
        f"{POD.replace('one', 'two')}---\n{POD.replace('one', 'two')}",
        "linkwise-simulator: jobs.yaml:13: metadata.name: Pod default/two stands here a "
        "second time: expected another name than in jobs.yaml:1",
    ),
    Row(
        "label",
        "letters that no label has",
        "NVIDIA  RTX™ 6000/Ada (48 GB)",
        "NVIDIA-RTX-6000Ada-48-GB",
    ),
    Row(
        "label",
        "longer than a label",
        "NVIDIA " + "H" * 100,
        "NVIDIA-HHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHHH",
    ),
    Row("label", "nothing legal in it", "™", ""),
)
