"""Ops on quantised tensors: one op a file, each as a plain reference, a CPU form and a GPU form.

Knows nothing of models or files.
"""

__pearl__ = True
