"""The embedded torch engine and the adapters to other engines; imports nothing of the gateway's.

Importing it sets `OMP_WAIT_POLICY=PASSIVE` unless the environment says otherwise, which must happen before torch is
loaded: by default its threads spin at the end of every small product, and where another process wants the cores too a
step then takes 10 to 40 times as long (measured on two cores). Sleeping threads cost little on a quiet machine.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
