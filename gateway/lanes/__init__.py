"""What the gateway learns while it serves, and hands to the decision: lane figures, answer lengths, who waits."""
