"""From text to training rows: prepare (text -> token store), the store itself, tokenizers, and the shipped sample."""
