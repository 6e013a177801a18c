"""The templates of a program, with those of the drawings and tables."""

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined


def environment(package: str) -> Environment:
    """Names are anybody's: whatever a template writes is escaped."""
    return Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("linkwise.drawing")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
