"""Several processes on one port: a supervisor that forks them, a house that keeps what there may be only one of.

    supervisor -- forks and restarts, nothing else
      house    -- the one writer of the database, the keys' table, and budgets where there is no Redis
      worker 0 -- serves calls, with a journal of its own; asks the house over a socket pair
      worker 1 ...

A call never waits for SQL here either: a worker's journal has its entry before the last byte leaves, the house gets it later.
"""
