"""`tollway demo`: recorded agent sessions through a running gateway, and the bill that its ledger then shows.

    sessions.py  the file of sessions       replay.py  sends their turns        progress.py  shows how far it is
    bill.py      asks the ledger for sums   checks.py  holds them against the engine's own counters
    show.py      prints both                run.py     the command
"""
from gateway.demo.run import command

__all__ = ["command"]
