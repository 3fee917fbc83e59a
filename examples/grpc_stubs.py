"""Stream an answer with the stubs of inference.proto alone. The gateway's host:port may be given as an argument."""

import sys

import grpc

from pdd.v1 import inference_pb2, inference_pb2_grpc

with grpc.insecure_channel(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:50050") as channel:
    question = inference_pb2.ChatMessage(role="user", content="Tell me about the sea.")
    request = inference_pb2.GenerateRequest(chat=inference_pb2.ChatInput(messages=[question]))
    request.options.max_tokens = 60
    for reply in inference_pb2_grpc.InferenceStub(channel).Generate(request, timeout=60):
        print(reply.delta.text, end="", flush=True)
print()
