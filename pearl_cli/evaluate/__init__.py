"""`pearl eval`: what a model, or a way of routing it, is worth on a text: windows, scores, intervals, report."""
