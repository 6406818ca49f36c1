"""What a file means: readers, configs, tokenizers and one file per architecture. Never fetches experts;

it is handed a provider.
"""

__pearl__ = True
