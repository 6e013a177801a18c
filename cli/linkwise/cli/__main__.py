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


@click.group(
    cls=OneLineGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="""\b
Example: which four of eight GPUs, if two are taken
  linkwise choose --machine dgx1-v100 --free 0-5 --size 4

\b
Completion, in ~/.bashrc (zsh_source and fish_source for others):
  eval "$(_LINKWISE_COMPLETE=bash_source linkwise)"
""",
)
@click.version_option(package_name="linkwise")
def main() -> None:
    """Ask without a cluster: which GPUs of a machine talk fastest to each other, which gangs the
    pods of a manifest are in, and where a job would go."""


main.add_command(choose_command)
main.add_command(machines_command)
main.add_command(recognise_command)
main.add_command(schema_command)
main.add_command(what_if_command)

if __name__ == "__main__":
    main()
