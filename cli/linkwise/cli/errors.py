"""How the command ends when it cannot do what was asked."""

import click


class BadInputError(click.ClickException):
    """What the operator gave cannot be used: one line on standard error, and exit status 2."""

    exit_code = 2

    def show(self, file: object = None) -> None:  # noqa: ARG002 - click's signature
        click.echo(f"linkwise: {self.message}", err=True)
