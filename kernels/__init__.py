"""Real PyTorch: attention, positions, linear layers, the timer and the probes. torch is imported only in here."""
