"""Stream an answer with pdd.client. The gateway's host:port may be given as an argument."""

import sys

from pdd.client import Chat, Client, ClientError, Request

request = Request(Chat.question("Tell me about the sea."), max_tokens=60)
try:
    with Client(*sys.argv[1:]) as client, client.generate(request, timeout_s=60) as answer:
        for delta in answer:
            print(delta.text, end="", flush=True)
except ClientError as error:
    sys.exit(f"\n{error}")
print()
result = answer.result
print(f"{result.usage.completion_tokens} tokens ({result.finish_reason}) by the plan {result.plan}", file=sys.stderr)
