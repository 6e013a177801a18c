"""Runs the plugin on a driver that plays.

    python -m tests.plugin.played_driver MACHINE FILE FLAG…

FILE is JSON that is read at each call, so a test changes it while the program runs:
{"nvmlDeviceGetMemoryInfo": [{"gpu": 3, "error": 15}, {"gpu": 4, "hang": true}], "xids": [[3, 79]]}.
A call that hangs returns when FILE does not say so any more.
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pynvml

from linkwise.topology.machine.recorded import recorded_machine
from tests.plugin.fake_nvml import FakeNvml


class PlayedDriver:
    def __init__(self, machine: str, file: Path) -> None:
        self._driver = FakeNvml(recorded_machine(machine, node="n1"))
        self._file = file
        self._xids = 0  # how many it has delivered

    def install(self) -> None:
        """In the library's place: functions of a module, under its names."""
        for name in vars(FakeNvml):
            if name.startswith("nvml"):
                setattr(pynvml, name, partial(self._call, name))

    def _call(self, name: str, *args: Any) -> Any:
        while True:
            hangs = [rule for rule in self._rules(name, args) if rule.get("hang")]
            if not hangs:
                break
            time.sleep(0.02)
        for rule in self._rules(name, args):
            if "error" in rule:
                raise pynvml.NVMLError(rule["error"])
            return rule["answer"]
        if name == "nvmlEventSetWait_v2":
            self._bring_xids()
        right: Callable[..., Any] = getattr(self._driver, name)
        return right(*args)

    def _rules(self, name: str, args: tuple[Any, ...]) -> list[dict[str, Any]]:
        rules: list[dict[str, Any]] = json.loads(self._file.read_text()).get(name, [])
        return [rule for rule in rules if "gpu" not in rule or (args and args[0] == rule["gpu"])]

    def _bring_xids(self) -> None:
        xids = json.loads(self._file.read_text()).get("xids", [])
        for handle, number in xids[self._xids :]:
            self._driver.xids.put((handle, number))
        self._xids = len(xids)


def run() -> None:
    machine, file, *flags = sys.argv[1:]
    PlayedDriver(machine, Path(file)).install()
    from linkwise.plugin.__main__ import main

    main(flags)


if __name__ == "__main__":
    run()
