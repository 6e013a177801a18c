"""What the programs print about themselves."""

import re
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from linkwise.cli.__main__ import main as linkwise
from linkwise.cli.kubectl import main as kubectl_linkwise
from linkwise.extender.__main__ import command as extender
from linkwise.plugin.__main__ import main as plugin
from linkwise.simulator.__main__ import command as simulator
from linkwise.webhook.__main__ import command as webhook

PROGRAMS: tuple[tuple[str, click.Command], ...] = (
    ("linkwise", linkwise),
    ("kubectl linkwise", kubectl_linkwise),
    ("linkwise-extender", extender),
    ("linkwise-plugin", plugin),
    ("linkwise-simulator", simulator),
    ("python -m linkwise.webhook", webhook),
)


def commands() -> Iterator[tuple[str, click.Command, tuple[str, ...]]]:
    """Each program and command: its name, its program, and what is typed after that."""
    for name, program in PROGRAMS:
        yield name, program, ()
        if isinstance(program, click.Group):
            yield from ((f"{name} {each}", program, (each,)) for each in program.commands)


@pytest.mark.parametrize(
    ("name", "program", "typed"), [*commands()], ids=[name for name, *_ in commands()]
)
def test_each_help_has_an_example_of_its_own(
    name: str, program: click.Command, typed: tuple[str, ...]
) -> None:
    result = CliRunner().invoke(program, [*typed, "-h"])
    assert result.exit_code == 0
    assert result.stdout == CliRunner().invoke(program, [*typed, "--help"]).stdout
    line = result.stdout.partition("Example:")[2].partition("\n\n")[0].strip().splitlines()[-1]
    assert name in line
    known = re.findall(r"(?<!\w)-{1,2}[\w-]+", result.stdout.partition("Example")[0])
    used = re.findall(r"(?<=\s)-{1,2}\w[\w-]*", line.partition(name)[2])
    if typed or not isinstance(program, click.Group):
        assert set(used) <= set(known)
    if typed:
        assert result.stdout.count("\n") <= 50  # a screen


@pytest.mark.parametrize("group", [linkwise, kubectl_linkwise])
def test_no_short_help_is_cut_on_a_usual_terminal(group: click.Group) -> None:
    listed = CliRunner().invoke(group, ["-h"]).stdout.partition("Commands:")[2]
    assert "..." not in listed
    for name, command in group.commands.items():
        assert f"  {name} " in listed
        assert command.short_help is not None
        assert command.short_help in listed


@pytest.mark.parametrize(("name", "program"), PROGRAMS[:1])
def test_the_completion_that_the_help_names_is_one(name: str, program: click.Command) -> None:
    said = CliRunner().invoke(program, ["-h"]).stdout
    word = name.replace(" ", "-")
    variable = f"_{word.replace('-', '_').upper()}_COMPLETE"
    assert f'eval "$({variable}=bash_source {word})"' in said
    made = CliRunner().invoke(program, [], prog_name=word, env={variable: "bash_source"})
    assert f"complete -o nosort -F _{word.replace('-', '_')}_completion {word}" in made.stdout
