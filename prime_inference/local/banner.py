"""What `up` prints when the stack serves."""

import json


def banner(url: str, key: str, model: str, seconds: float, state_dir: str, internal_url: str) -> str:
    messages = [{"role": "user", "content": "Name the capital of France."}]
    body = json.dumps({"model": model, "messages": messages, "max_tokens": 100})
    return f"""
Serving {model} after {seconds:.0f} s. Ctrl-C stops everything.

  URL      {url}
  key      {key}
  console  {internal_url}/console (its key is in admin-key of the state folder)
  metrics  {internal_url}/metrics
  state    {state_dir} (logs in logs/)

curl {url}/chat/completions -H 'authorization: Bearer {key}' -d '{body}'

from openai import OpenAI

client = OpenAI(base_url="{url}", api_key="{key}")
messages = [{{"role": "user", "content": "Name the capital of France."}}]
for chunk in client.chat.completions.create(model="{model}", messages=messages, max_tokens=100, stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
"""
