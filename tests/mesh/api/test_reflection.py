"""Generic tools: what they need to call the gateway without its .proto files."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.mesh.api.conftest import Gateway

SERVICE = "pdd.v1.Inference"


def services(address: str) -> list[str]:
    with grpc.insecure_channel(address) as channel:
        return list(ProtoReflectionDescriptorDatabase(channel).get_services())


def generate(address: str, prompt: str) -> list[Any]:
    """Call Generate with nothing known but its name."""
    with grpc.insecure_channel(address) as channel:
        pool = DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
        method = pool.FindServiceByName(SERVICE).FindMethodByName("Generate")
        request_class, reply_class = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        call = channel.unary_stream(
            f"/{SERVICE}/{method.name}",
            request_serializer=request_class.SerializeToString,
            response_deserializer=reply_class.FromString,
        )
        return list(call(request_class(prompt=prompt), timeout=20))


async def test_the_services_are_listed(gateway: Gateway) -> None:
    listed = await asyncio.to_thread(services, gateway.grpc)
    assert {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"} <= set(listed)


async def test_an_answer_can_be_asked_for_from_the_descriptors_alone(gateway: Gateway) -> None:
    *deltas, last = await asyncio.to_thread(generate, gateway.grpc, " the sea")
    assert "".join(reply.delta.text for reply in deltas) == " the river ran to the sea."
    assert last.done.finish_reason == "stop"
