"""What the image and krew's archives are made of is pinned, and is what the project asks for."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
RUN: list[str] = PROJECT["project"]["dependencies"]
BUILD: list[str] = PROJECT["build-system"]["requires"]
KREW: list[str] = PROJECT["project"]["optional-dependencies"]["krew"]
LOCKS = {
    "daemonset/requirements.lock": RUN,
    "daemonset/build.lock": BUILD,
    "krew/requirements.lock": [*RUN, *KREW],
}


@dataclass(frozen=True)
class Pin:
    version: Version
    hashes: int


def pins(lock: str) -> Mapping[str, Pin]:
    """A lock's packages. Raises ValueError where one is not pinned to a version."""
    lines = re.sub(r"\\\n", "", (ROOT / lock).read_text()).splitlines()
    found: dict[str, Pin] = {}
    for line in lines:
        if not line or line.startswith("#"):
            continue
        match = re.match(r"([\w.-]+)==(\S+)", line)
        if match is None:
            raise ValueError(f"{lock}: {line!r}: expected NAME==VERSION")
        found[canonicalize_name(match[1])] = Pin(Version(match[2]), line.count("--hash=sha256:"))
    return found


def unmet(requirements: Sequence[str], pinned: Mapping[str, Pin]) -> list[str]:
    """Which of *requirements* the pins do not satisfy."""
    missing = []
    for text in requirements:
        wanted = Requirement(text)
        pin = pinned.get(canonicalize_name(wanted.name))
        if pin is None or pin.version not in wanted.specifier:
            missing.append(f"{text}: {pin.version if pin else 'not there'}")
    return missing


@pytest.mark.parametrize(("lock", "asked"), LOCKS.items())
def test_the_lock_satisfies_the_project(lock: str, asked: list[str]) -> None:
    assert not unmet(asked, pins(lock)), "make lock"


@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_of_the_lock_is_named_by_hash(lock: str) -> None:
    assert not [name for name, pin in pins(lock).items() if not pin.hashes]


def test_krews_archives_have_the_packages_of_the_image() -> None:
    krew = pins("krew/requirements.lock")
    for lock in ("daemonset/requirements.lock", "daemonset/build.lock"):
        other = {name: pin for name, pin in pins(lock).items() if name in krew}
        assert {name: krew[name].version for name in other} == {
            name: pin.version for name, pin in other.items()
        }


def test_a_lock_that_is_too_old_is_found() -> None:
    numpy = {"numpy": Pin(Version("1.25.0"), 1)}
    assert unmet(["numpy>=1.26", "flask>=3"], numpy) == [
        "numpy>=1.26: 1.25.0",
        "flask>=3: not there",
    ]


def test_the_image_is_made_of_every_source_root_but_the_simulator() -> None:
    """hatchling leaves out what does not come through .dockerignore, and says nothing."""
    through = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    roots = set(PROJECT["tool"]["hatch"]["build"]["dev-mode-dirs"])
    assert roots & through == roots - {"simulator"}


def test_the_image_keeps_the_command_of_every_source_root_in_it() -> None:
    """Others' commands are removed from it by a list of those that stay; a kubectl plugin is for
    where kubectl is."""
    kept = re.findall(r"! -name (linkwise[\w-]*)", (ROOT / "Containerfile").read_text())
    scripts = PROJECT["project"]["scripts"].items()
    assert set(kept) == {
        name
        for name, where in scripts
        if ".simulator." not in where and not name.startswith("kubectl")
    }
