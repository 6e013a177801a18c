"""A test's end of the vendor's plugin in a process of its own (vendor_program.py)."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
GPU = "nvidia.com/gpu"


# Processes whose vendors have left. To start one costs more than most tests; each ends with this
# process, which closes its input.
_resting: list[subprocess.Popen[bytes]] = []


def _started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.plugin.in_front.vendor_program"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path]))},
    )


class ScriptedVendor:
    """Its sockets are made in *directory*; it registers at *where*."""

    def __init__(self, directory: Path, where: Path) -> None:
        self.process = _resting.pop() if _resting else _started()
        self.do("settle", directory=str(directory), where=str(where))

    def do(self, what: str, **arguments: object) -> Any:
        """Carried out once this returns."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"do": what, **arguments}).encode() + b"\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def offer(
        self,
        resource: str,
        ids: Iterable[str],
        *,
        socket: str = "nvidia-gpu.sock",
        **behaviour: object,
    ) -> None:
        devices: dict[str, Sequence[int]] = dict.fromkeys(ids, ())
        behaviour.setdefault("devices", devices)
        self.do("offer", resource=resource, socket=socket, **behaviour)

    def begin(self) -> None:
        self.do("begin")

    def set(self, resource: str = GPU, **behaviour: object) -> None:
        self.do("set", resource=resource, **behaviour)

    def calls(self, method: str, resource: str = GPU) -> list[dict[str, Any]]:
        return [call for call in self.do("calls", resource=resource) if call["method"] == method]

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def leave(self) -> None:
        """At the end of a test, dead or alive: the next test may have its process."""
        if self.process.poll() is None:
            self.thaw()
            self.do("leave")
            _resting.append(self.process)

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()
