"""`python -m krew`: what a release publishes for krew."""

import tomllib
from pathlib import Path

import click

from krew.archive import LICENSE, ArchiveError, build
from krew.manifest import ManifestError, manifest

_PROJECT = LICENSE.with_name("pyproject.toml")
_PATH = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.group()
def main() -> None:
    """Make what krew installs as `kubectl linkwise`."""


@main.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
def archive(directory: Path) -> None:
    """Write the archive for this machine's platform into DIRECTORY."""
    try:
        click.echo(build(directory))
    except ArchiveError as error:
        raise click.ClickException(str(error)) from None


@main.command("manifest")
@click.option("--homepage", required=True, metavar="URL", help="The project's page.")
@click.option("--address", required=True, metavar="URL", help="Where the archives can be found.")
@click.argument("archives", nargs=-1, required=True, type=_PATH)
def print_manifest(homepage: str, address: str, archives: tuple[Path, ...]) -> None:
    """Print the manifest of ARCHIVES, with the version of pyproject.toml."""
    version = tomllib.loads(_PROJECT.read_text())["project"]["version"]
    try:
        click.echo(manifest(version, homepage, address, archives), nl=False)
    except ManifestError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
