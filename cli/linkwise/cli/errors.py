"""The ways in which a command fails."""

import click

from linkwise.cli.printed import say


class AskError(click.ClickException):
    """The program or server that was asked gave no answer: one line on standard error, status 1."""

    def show(self, file: object = None) -> None:  # noqa: ARG002 - click's signature
        say(f"linkwise: {self.message}", err=True, nl=True)


class BadInputError(click.ClickException):
    """The operator's input cannot be used: one line on standard error, status 2."""

    exit_code = 2

    def show(self, file: object = None) -> None:  # noqa: ARG002 - click's signature
        say(f"linkwise: {self.message}", err=True, nl=True)
