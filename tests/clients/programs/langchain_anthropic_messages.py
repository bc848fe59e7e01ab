"""LangChain's Anthropic chat model: an answer, a stream, a tool call and its result."""
import json
import os

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"12 degrees in {city}"


model = ChatAnthropic(model=os.environ["MODEL"], base_url=os.environ["GATEWAY"], api_key=os.environ["KEY"], max_tokens=64, max_retries=0)
answer = model.invoke("Say hello. Grüße 🌍")
chunks = list(model.stream("Say hello."))
asked = model.bind_tools([weather]).invoke([HumanMessage("Weather in Oslo?")])
result = ToolMessage(weather.invoke(asked.tool_calls[0]["args"]), tool_call_id=asked.tool_calls[0]["id"])
final = model.bind_tools([weather]).invoke([HumanMessage("Weather in Oslo?"), asked, result])
print(json.dumps({
    "answer": answer.text, "stream": "".join(chunk.text for chunk in chunks), "pieces": len([c for c in chunks if c.text]),
    "tool": asked.tool_calls[0]["args"], "final": final.text, "input_tokens": answer.usage_metadata["input_tokens"],
    "cached": answer.usage_metadata["input_token_details"]["cache_read"],
}))  # fmt: skip
