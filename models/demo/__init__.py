"""The embedded demo model: its generated corpus, tokenizer, training script, evaluation and card.

Nothing here is imported by the runtime; torch is needed only by `train`, `model` and `evaluate`.
"""
