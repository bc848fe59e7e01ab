"""One wire format per file: bytes <-> core values, both directions, no I/O."""
