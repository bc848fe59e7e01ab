"""The proxy: one call in, one or more attempts out, every one of them weighed."""
