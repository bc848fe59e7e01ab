"""pydantic-ai with openai's model class: an answer, a stream, and an agent that runs a tool."""
import asyncio
import json
import os

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel as Model
from pydantic_ai.providers.openai import OpenAIProvider as Provider

model = Model(os.environ["MODEL"], provider=Provider(base_url=os.environ["GATEWAY"] + "/v1", api_key=os.environ["KEY"]))
seen = []


def weather(city: str) -> str:
    """The weather in a city."""
    seen.append(city)
    return f"12 degrees in {city}"


async def main() -> None:
    plain = Agent(model)
    answer = await plain.run("Say hello. Grüße 🌍")
    async with plain.run_stream("Say hello.") as streamed:
        pieces = [piece async for piece in streamed.stream_text(delta=True, debounce_by=None)]
    final = await Agent(model, tools=[weather]).run("Weather in Oslo?")
    usage = answer.usage() if callable(answer.usage) else answer.usage
    print(json.dumps({
        "answer": answer.output, "stream": "".join(pieces), "pieces": len(pieces), "tool": {"city": seen[0]}, "final": final.output,
        "input_tokens": usage.input_tokens, "cached": usage.cache_read_tokens,
    }))  # fmt: skip


asyncio.run(main())
