"""What a release publishes for krew."""

import hashlib
import tarfile
from pathlib import Path

import pytest
import yaml

from krew.archive import PROGRAM, ArchiveError, pack, platform_of
from krew.manifest import ManifestError, manifest

PAGE = "https://example.com/linkwise"
FILES = f"{PAGE}/releases/download/v1.2.3"


def archive(directory: Path, platform: str) -> Path:
    path = directory / f"{PROGRAM}_{platform}.tar.gz"
    path.write_bytes(platform.encode())
    return path


def test_the_manifest_names_each_archive_with_its_platform_and_hash(tmp_path: Path) -> None:
    archives = [archive(tmp_path, name) for name in ("linux_arm64", "darwin_arm64", "linux_amd64")]
    said = yaml.safe_load(manifest("1.2.3", PAGE, FILES, archives))
    assert said["metadata"]["name"] == "linkwise"
    assert said["spec"]["version"] == "v1.2.3"
    assert [each["uri"].rpartition("/")[2] for each in said["spec"]["platforms"]] == [
        f"{PROGRAM}_{name}.tar.gz" for name in ("darwin_arm64", "linux_amd64", "linux_arm64")
    ]
    first = said["spec"]["platforms"][0]
    assert first == {
        "selector": {"matchLabels": {"os": "darwin", "arch": "arm64"}},
        "uri": f"{FILES}/{PROGRAM}_darwin_arm64.tar.gz",
        "sha256": hashlib.sha256(b"darwin_arm64").hexdigest(),
        "bin": PROGRAM,
    }


def test_an_archive_of_an_unknown_platform_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"_windows_amd64\.tar\.gz: expected a name like"):
        manifest("1.2.3", PAGE, FILES, [archive(tmp_path, "windows_amd64")])


def test_two_archives_of_one_platform_are_refused(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    both = [archive(tmp_path, "linux_amd64"), archive(tmp_path / "again", "linux_amd64")]
    with pytest.raises(ManifestError, match="expected one archive for each platform"):
        manifest("1.2.3", PAGE, FILES, both)


@pytest.mark.parametrize(
    ("system", "machine", "named"),
    [
        ("Linux", "x86_64", "linux_amd64"),
        ("Linux", "aarch64", "linux_arm64"),
        ("Darwin", "arm64", "darwin_arm64"),
    ],
)
def test_a_platform_has_the_name_that_krew_selects(system: str, machine: str, named: str) -> None:
    assert platform_of(system, machine) == named


def test_a_platform_without_an_archive_is_named() -> None:
    with pytest.raises(ArchiveError, match=r"Windows on AMD64: expected Linux or Darwin"):
        platform_of("Windows", "AMD64")


def test_the_archive_has_files_where_the_frozen_program_has_links(tmp_path: Path) -> None:
    """krew refuses links of any kind."""
    frozen = tmp_path / "frozen"
    (frozen / "lib" / "deep").mkdir(parents=True)
    (frozen / PROGRAM).write_text("#!/bin/sh\n")
    (frozen / PROGRAM).chmod(0o755)
    (frozen / "lib" / "deep" / "a.so").write_text("a")
    (frozen / "lib" / "a.so").symlink_to("deep/a.so")
    (frozen / "lib" / "b.so").hardlink_to(frozen / "lib" / "deep" / "a.so")
    (frozen / "latest").symlink_to("lib")
    packed = tmp_path / "packed.tar.gz"
    pack(frozen, packed)
    with tarfile.open(packed) as tar:
        members = {member.name: member for member in tar.getmembers()}
        assert all(member.isreg() or member.isdir() for member in members.values())
        assert {(member.uid, member.mtime) for member in members.values()} == {(0, 0)}
        for name in ("lib/a.so", "lib/b.so", "latest/deep/a.so"):
            content = tar.extractfile(name)
            assert content is not None
            assert content.read() == b"a"
    assert members[PROGRAM].mode & 0o111
    assert "LICENSE" in members
