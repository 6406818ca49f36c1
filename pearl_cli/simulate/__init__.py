"""`pearl simulate`: replay recorded routing through every eviction policy, without a model."""
