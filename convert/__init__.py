"""Checkpoint in, pearl shards out."""
