"""The filters, in the order they are asked: the first that says no gives the reason.

`serves_model` stands before those that look the model up. A new one is a file here and a line below.
"""

from router_policies.filters.allowed import backend_allowed, lane_allowed
from router_policies.filters.context_fits import context_fits
from router_policies.filters.has_room import has_room
from router_policies.filters.healthy import healthy
from router_policies.filters.priced import priced
from router_policies.filters.serves_model import serves_model
from router_policies.types import Filter

FILTERS: tuple[Filter, ...] = (serves_model, backend_allowed, lane_allowed, healthy, context_fits, priced, has_room)
