"""How the command ends when it cannot do what was asked."""

import click


class AskError(click.ClickException):
    """Who was asked gave no answer: one line on standard error, and exit status 1."""

    def show(self, file: object = None) -> None:  # noqa: ARG002 - click's signature
        click.echo(f"linkwise: {self.message}", err=True)


class BadInputError(click.ClickException):
    """What the operator gave cannot be used: one line on standard error, and exit status 2."""

    exit_code = 2

    def show(self, file: object = None) -> None:  # noqa: ARG002 - click's signature
        click.echo(f"linkwise: {self.message}", err=True)
