"""Probes: how far back a model really looks, beside its perplexity. Each is `probe(params) -> (scalars, arrays)`."""
