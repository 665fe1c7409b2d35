"""Real PyTorch: attention, positions, linear layers, the timer and the probes. torch is imported only in here."""

import os

# PyTorch asks the system for huge pages where this is set before its first tensor. Without them which of two equal weights is read up
# to a tenth slower is luck, the probe's or the model's: benchmarks/huge_pages.py. Who has set it otherwise keeps that.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
