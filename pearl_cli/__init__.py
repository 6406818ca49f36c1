"""The runtime and its commands."""
