"""A kubelet to drive, in a directory of its own. Unix socket paths are short, so not tmp_path."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugin.fake_kubelet import FakeKubelet


@pytest.fixture
def kubelet_dir() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="lw-") as directory:
        yield Path(directory)


@pytest.fixture
def kubelet(kubelet_dir: Path) -> Iterator[FakeKubelet]:
    running = FakeKubelet(kubelet_dir)
    running.start()
    yield running
    running.stop()
