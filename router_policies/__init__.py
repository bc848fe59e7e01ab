"""Pure routing decisions: a team's policy file and a snapshot of lanes in, a ranked list with reasons out.

Imports nothing of ours and does no I/O but reading policy files, so a backtest runs the same code as the gateway.
"""
