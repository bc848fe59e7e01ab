"""The filters, in the order they are asked: the first that says no gives the reason.

`FIXED` look at policy, class, model and price only: their answer stands until one of those changes, and is kept. `LIVE` look
at the call or at the lane of the moment. A new one is a file here and a line below.
"""

from router_policies.filters.allowed import backend_allowed, lane_allowed
from router_policies.filters.context_fits import context_fits
from router_policies.filters.has_room import has_room
from router_policies.filters.healthy import healthy
from router_policies.filters.priced import priced
from router_policies.filters.serves_model import serves_model
from router_policies.types import Filter

FIXED: tuple[Filter, ...] = (serves_model, backend_allowed, lane_allowed, priced)
LIVE: tuple[Filter, ...] = (healthy, context_fits, has_room)
OF_LANE = frozenset({healthy, has_room})
"""Of those the ones that do not look at the call: they are asked once for one look at the lanes."""
