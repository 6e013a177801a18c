import click


@click.command()
def openb() -> None:
    """later"""
