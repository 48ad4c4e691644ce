"""Other people's checkpoints and configs, in and out."""
