"""What is cached where, as far as our own traffic tells."""
