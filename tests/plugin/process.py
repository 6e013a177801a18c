"""The program as it runs: a process of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen


class Process:
    """A running `linkwise-plugin` on node n1; *program*: Python's arguments to run it."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        program: tuple[str, ...] = ("-m", "linkwise.plugin"),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log_file = directory / "log"
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, *program),
                    *("--kubelet-dir", str(directory)),
                    *("--pod-resources-socket", str(directory / "pod-resources")),
                    *("--listen-address", "127.0.0.1", "--listen-port", "0"),
                    *arguments,
                ],
                stderr=log,
                env=os.environ | {"LINKWISE_PLUGIN_NODE_NAME": "n1"} | dict(environment or {}),
            )

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    @property
    def serves(self) -> bool:
        return "HTTP on port " in self.log

    @property
    def port(self) -> int:
        """Once it serves."""
        return int(self.log.split("HTTP on port ")[1].split("\n")[0])

    def get(self, path: str) -> tuple[int, str]:
        port = self.port
        try:
            with urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def ready(self) -> bool:
        return self.serves and self.get("/readyz")[0] == 200

    def metric(self, line: str) -> float:
        """The value of the metric that begins so; NaN where there is none."""
        for found in self.get("/metrics")[1].splitlines():
            if found.startswith(f"linkwise_plugin_{line}"):
                return float(found.rsplit(" ", 1)[1])
        return float("nan")

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)
