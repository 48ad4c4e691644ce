"""The model: attention, the Llama-like decoder, its arithmetic, and cached generation. Modules are Flax NNX; the rest is functions."""
