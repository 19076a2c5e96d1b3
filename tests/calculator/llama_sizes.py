"""Two decoders whose FLOPs are worked out by hand."""

from __future__ import annotations

from mfu_torch.flops.formulas import dense_decoder

# W: layer 2 x 8192² + 2 x 8192 x 1024 + 3 x 8192 x 28672 = 855,638,016, of 80; head 1,050,673,152.
LLAMA_70B = dense_decoder(
    layers=80,
    hidden=8192,
    heads=64,
    kv_heads=8,
    ffn=28672,
    vocab=128256,
    others=(2 * 80 + 1) * 8192,
)
LLAMA_W = 69_501_714_432
LLAMA_TOKEN = 6 * LLAMA_W + 64_424_509_440  # scores: 6 x 80 x 64 x 256 x 8192

# W: 4 x 16 + 3 x 32 + head 40 = 200; scores of a token at 5: 6 x 2 x 4 x 5 = 240.
TINY = dense_decoder(layers=1, hidden=4, heads=2, ffn=8, vocab=10)
TINY_TOKEN = 6 * 200 + 240
