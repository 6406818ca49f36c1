"""The runtime and its commands."""

__pearl__ = True
