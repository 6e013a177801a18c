"""Each flag of a program that runs in the cluster has the environment variable of its name."""

import click
import pytest

from linkwise.extender.__main__ import command as extender
from linkwise.plugin.__main__ import main as plugin
from linkwise.webhook.__main__ import command as webhook


@pytest.mark.parametrize(
    ("command", "prefix"),
    [
        (extender, "LINKWISE_EXTENDER"),
        (plugin, "LINKWISE_PLUGIN"),
        (webhook, "LINKWISE_WEBHOOK"),
    ],
)
def test_each_flag_has_its_variable(command: click.Command, prefix: str) -> None:
    """click names it after the parameter, unless the option says otherwise."""
    assert command.context_settings["auto_envvar_prefix"] == prefix
    for option in command.params:
        assert isinstance(option, click.Option)
        flag = max(option.opts, key=len).removeprefix("--")
        expected = f"{prefix}_{flag.upper().replace('-', '_')}"
        assert expected in (option.envvar, f"{prefix}_{str(option.name).upper()}"), flag
