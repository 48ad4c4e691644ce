"""What a spectrum promises before any model is trained: NumPy float64, from the frequencies alone."""
