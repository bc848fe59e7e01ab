from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("dialects", deadline=None, max_examples=60)
settings.load_profile("dialects")


@pytest.fixture(params=["openai_chat", "anthropic_messages", "openai_responses"])
def dialect(request: pytest.FixtureRequest) -> str:
    return str(request.param)
