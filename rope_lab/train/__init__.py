"""Training: state, loss, pure step, optimizer, sharding and checkpoints; `loop.py` is the only imperative file."""
