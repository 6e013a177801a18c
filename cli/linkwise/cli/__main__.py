"""`linkwise`: ask for placements and reasons without a cluster."""

import click

from linkwise.cli.choose.choose_command import choose_command
from linkwise.cli.choose.machines_command import machines_command
from linkwise.cli.errors import BadInputError
from linkwise.cli.recognise import recognise_command
from linkwise.cli.schema import schema_command
from linkwise.cli.what_if.command import what_if_command


class OneLineGroup(click.Group):
    """A group whose commands refuse wrong usage as any other mistake: one line, status 2."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise BadInputError(error.format_message()) from None


@click.group(cls=OneLineGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="linkwise")
def main() -> None:
    """Which GPUs talk fastest to each other, on which machine, and why."""


main.add_command(choose_command)
main.add_command(machines_command)
main.add_command(recognise_command)
main.add_command(schema_command)
main.add_command(what_if_command)

if __name__ == "__main__":
    main()
