"""What stands behind the figures in README and docs; `python -m benchmarks` runs all, each also runs alone."""
