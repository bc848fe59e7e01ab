"""Recorded traffic under two sets of policies: what is replayed, where the runs are made, and how they compare."""
