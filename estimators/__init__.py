"""What follows from a spec: the ledger and the sums over it. Pure arithmetic: no I/O, no torch, no printing."""
