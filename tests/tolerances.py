"""Every tolerance of the suite, with the reason for its size. A test names one; none is written in a test.

`*_RELATIVE` is max |difference| / max |expected| over a whole array.
"""

LOGITS_RELATIVE = 1e-4
"""A whole model in float32 against transformers in float32: the two differ only in the order of sums."""

PAPER_DECIMALS = 1.5e-6
"""A worked example that is written down with six decimals."""

REFERENCE_RELATIVE = 1e-12
"""Two float64 formulas for the same value."""

FLOAT32_RELATIVE = 1e-5
"""A few float32 roundings between float64 formulas."""

KV_F16_RELATIVE = 2e-3
"""Logits with half-float keys and values: 2^-11 a component, grown by a few layers."""

KV_Q8_0_RELATIVE = 5e-2
"""Logits with q8_0 keys and values: 1/254 of a block's largest component."""

DEMO_GRADIENT_RTOL = 1e-6
"""A hand-written gradient in float64 whose weight gradients are handed back as float32."""

DEMO_LOGITS_ATOL = 1e-4
"""Logits of the demo model's training form in float32 against transformers, or against itself in another batch."""

ROPE_ABSOLUTE = 5e-4
"""cos and sin at position 6000: a float32 angle there is known to 6000 * 2^-23, and the frequencies differ by a
rounding.
"""

FLOAT32_ROW_RELATIVE = 5e-7
"""A float32 row computed with few roundings a component (norm, rope, mixing weights):

about four units in the last place.
"""

ATTENTION_RELATIVE = 4e-6
"""Online softmax in float32 against float64: exp within 2 units in the last place, sums over hundreds of positions."""

ATTENTION_Q8_0_RELATIVE = 1e-4
"""The same over q8_0 keys and values, with queries and weights as whole numbers of 16 bits: a hundredth of what q8_0
has rounded off keys and values."""

TILE_RELATIVE = 5e-6
"""float32 sums of exact block products, some hundred terms, against float64 on the same quantised activations."""

DOT_RELATIVE = 1e-6
"""A float32 dot with exact integer sums inside its blocks, over the sum of |weight * activation|."""

# Relative RMS error of the searching quantisers on normal random weights: what llama-quantize was measured to leave on
# weights of that distribution (rounded up), which these stay below.
QUANTIZER_RMS = {"Q2_K": 0.2961, "Q3_K": 0.1507, "Q4_K": 0.0714, "Q5_K": 0.0361, "Q6_K": 0.01775, "IQ4_NL": 0.0763}
# A row of one repeated value, through quantised scales of the super-block: half a step of a 6-bit scale at worst.
QUANTIZER_CONSTANT = 0.02
# Root mean square error of any type, over that of the weights, where these are near the largest it can store.
QUANTIZER_LARGE = 0.4
# Errors of ggml as written down, against those of a library built by another compiler.
GGML_ERROR_RELATIVE = 1e-4

FORECAST_TOLERANCE = 1e-9
"""The closed form of an expectation against the sum it stands for, both in float64."""

FORECAST_FLOAT32 = 2e-5
"""A small network in numpy against torch, float32: sums over some hundred terms, then a sigmoid; absolute."""

PERPLEXITY_RELATIVE = 1e-3
"""Perplexity of a text through pearl and through transformers, both in float32."""

DELTA_RULE_RELATIVE = 2e-6
"""A state in float32 that tens of tokens have gone over, against float64: a few roundings a token, decaying with it."""

GPU_RELATIVE = 2e-6
"""A GPU kernel through Triton's interpreter, float32 sums of some hundred terms, against float64."""

TF32_RELATIVE = 1e-3
"""Products of numbers rounded to 11 significant bits: 2^-11 a term, which sums with random signs do not enlarge."""

GPU_LOGITS_F32 = 2e-6
"""Logits of a float32 model on the GPU path against the CPU path, over the largest: sums in another order."""

GPU_LOGITS_QUANTISED = 0.02
"""Logits of a Q8_0 model likewise: the CPU rounds activations to 8 bits, the GPU keeps them in float32."""

ROW_PRODUCT_RELATIVE = 3e-7
"""Fused multiply-adds in float32 over up to 33 terms, over the sum of |term|: some half units in the last place."""
