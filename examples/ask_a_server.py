"""Ask a team over HTTP, by OpenAI's own client, and see it think.

manyhands serve                          # in another terminal
python examples/ask_a_server.py          # or with another address: http://127.0.0.1:8000
"""

import os
import sys

from openai import APIConnectionError, OpenAI

address = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
key = os.environ.get("OPENAI_API_KEY", "none needed on this machine")
client = OpenAI(base_url=f"{address}/v1", api_key=key)
try:
    model = client.models.list().data[0].id
except APIConnectionError as error:
    raise SystemExit(f"no server answers at {address}; start one with `manyhands serve`") from error

stream = client.chat.completions.create(
    model=f"{model}:hogwild-2",
    messages=[
        {
            "role": "user",
            "content": "Solve these problems and box the answers in order, separated by commas:\n"
            "1. 84 + 29 - 38\n2. 17 + 60 - 31",
        }
    ],
    stream=True,
)
print("The team thinks:")
is_replying = False
for chunk in stream:
    delta = chunk.choices[0].delta
    thought = (delta.model_extra or {}).get("reasoning_content")
    if thought:
        print(thought, end="", flush=True)
    if delta.content:
        print("" if is_replying else "\n\nIts reply:\n", end="")
        is_replying = True
        print(delta.content, end="", flush=True)
print()
