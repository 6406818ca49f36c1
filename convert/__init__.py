"""Checkpoint in, pearl shards out."""

__pearl__ = True
