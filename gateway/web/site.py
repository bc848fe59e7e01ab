"""All that Litestar answers: health, metrics, models, the usage and admin paths. Model calls do not come here.

No call needs Litestar, and loading it takes a good part of a start, so `Gateway` has it loaded once calls are being taken.
"""
from __future__ import annotations

from litestar import Litestar
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from gateway.core.errors import GatewayError
from gateway.services import Services
from gateway.web import admin, books, errors, health, people, routes, watched
from gateway.web.sign_in import SignIn


def build(services: Services) -> Litestar:
    """The site over these services."""
    return Litestar(
        route_handlers=[
            *health.HANDLERS, *routes.HANDLERS, *admin.HANDLERS, *people.HANDLERS, *books.HANDLERS, *watched.HANDLERS,
        ],
        guards=[SignIn(services.settings.login, services.people)],
        state=State({"services": services}),
        exception_handlers={
            GatewayError: errors.on_gateway_error,
            DBAPIError: errors.on_database_error,
            OSError: errors.on_database_error,
            PoolTimeout: errors.on_database_error,
            RecursionError: errors.on_too_deep,
            HTTPException: errors.on_http_error,
            Exception: errors.on_any_error,
        },
        openapi_config=None,
        logging_config=None,
    )  # fmt: skip
