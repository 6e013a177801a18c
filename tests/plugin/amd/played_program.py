"""`linkwise-plugin` that reads AMD's GPUs from the folder that its first argument names."""

import sys
from pathlib import Path

from linkwise.plugin import __main__ as program
from linkwise.plugin.amd.source import AmdInventory

if __name__ == "__main__":
    root = Path(sys.argv.pop(1))
    program.SOURCES = {"amd": lambda _: AmdInventory(sys_root=root)}
    program.main()
