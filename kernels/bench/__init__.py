"""Times of single ops by quant type and model shape, beside the memory read rate: `python -m kernels.bench`."""
