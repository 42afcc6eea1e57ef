"""The one error of the launcher."""


class CannotServe(Exception):
    """The message says what is wrong and what to do next."""
