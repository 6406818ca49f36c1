"""Times of single ops by quant type and model shape, beside the machine's memory read rate: `python -m kernels.bench`."""
