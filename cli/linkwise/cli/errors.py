"""The ways in which a command fails."""

import click


class AskError(click.ClickException):
    """The program or server that was asked gave no answer: one line on standard error, status 1."""

    def show(self, file: object = None) -> None:  # noqa: ARG002 - click's signature
        click.echo(f"linkwise: {self.message}", err=True)


class BadInputError(click.ClickException):
    """The operator's input cannot be used: one line on standard error, status 2."""

    exit_code = 2

    def show(self, file: object = None) -> None:  # noqa: ARG002 - click's signature
        click.echo(f"linkwise: {self.message}", err=True)
