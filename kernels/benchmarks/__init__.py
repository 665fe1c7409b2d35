"""Benchmarks of the local device: each measures, and says beside it what the ledger predicts for the bandwidth of the same run."""
