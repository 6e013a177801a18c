"""What people hand over, and the message they get; see files.py for the places."""

import json

from tests.bad_input.files import POD
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
        "plugin: no node name",
        ("linkwise-plugin",),
        "2 Error: Missing option '--node-name'.",
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
        "no text",
        b"\x89PNG\r\n\x1a\n\xff",
        "linkwise: --machine FILE: not text: 'utf-8' codec can't decode byte 0x89 in "
        "position 0: invalid start byte",
    ),
    Row(
        "machine file",
        "pci bus id",
        _machine(gpus=[{"index": 0, "model": "T4", "pci_bus_id": "1a:00"}]),
        "linkwise: --machine FILE: machine 'm': GPU 0: PCI bus id '1a:00': expected like "
        "0000:1a:00.0",
    ),
    Row(
        "manifest",
        "the second document",
        f"{POD}---\n{JOB.replace('Never', 'Always')}",
        "linkwise-simulator: jobs.yaml:20: document 2: spec.template.spec.restartPolicy: "
        "'Always': expected Never or OnFailure in a Job",
    ),
)
