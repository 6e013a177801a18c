"""Why jobs cannot be replayed."""


class ReplayError(Exception):
    """The request is impossible; the text says what to change."""
