"""Stream an answer with OpenAI's own client. OPENAI_BASE_URL says where the gateway is."""

import os

from openai import OpenAI

client = OpenAI(base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8000/v1"), api_key="none needed")
model = client.models.list().data[0].id
question = "Tell me about the sea."
for chunk in client.chat.completions.create(
    model=model, messages=[{"role": "user", "content": question}], max_tokens=60, stream=True
):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
