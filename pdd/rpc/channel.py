"""Client channels, set up alike for every peer of the mesh.

Called by the gateway and by prefill. A channel owns its connection: two channels to the same peer never share one, so that KV and
tokens, which ask for channels of their own, don't queue behind each other. Retrying is the gateway's alone; gRPC does none here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import grpc.aio

MAX_MESSAGE_BYTES = 16 << 20
KEEPALIVE_S = 10.0  # silence after which a peer is pinged
PING_TIMEOUT_S = 20.0  # time it has to answer; a ping waits behind what a slow line holds

# How a process reaches its peers: passed in, so that the same code runs over a network in memory.
OpenChannel: TypeAlias = "Callable[[str], grpc.aio.Channel]"

ChannelOptions = tuple[tuple[str, int], ...]

MESSAGE_OPTIONS: ChannelOptions = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)

# Streams live for hours and may be silent for long, through a link that may swallow everything: ping them, calls or not.
KEEPALIVE_OPTIONS: ChannelOptions = (
    ("grpc.keepalive_time_ms", round(KEEPALIVE_S * 1000)),
    ("grpc.keepalive_timeout_ms", round(PING_TIMEOUT_S * 1000)),
    ("grpc.keepalive_permit_without_calls", 1),
    # The stock time-out of a ping, a minute, would otherwise hold.
    ("grpc.http2.ping_timeout_ms", round(PING_TIMEOUT_S * 1000)),
    ("grpc.http2.max_pings_without_data", 0),
)

CLIENT_OPTIONS: ChannelOptions = (
    # gRPC would otherwise share one connection among all channels of a process to the same address.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    # A restarted peer is found within seconds; the stock back-off grows to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 2000),
)

# gRPC would let a fast peer run ahead by megabytes, for tokens seconds. Bounded, a peer that makes them faster than they
# are read notices at once, and sends several steps in one frame.
_TOKEN_OPTIONS: ChannelOptions = (
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 64 << 10),
)


def open_channel(address: str, more: ChannelOptions = ()) -> grpc.aio.Channel:
    """A channel to `address` ("host:port"), connected at the first call. Use it as `async with`; leaving cancels its calls.

    `more` come before those that all channels have.
    """
    return grpc.aio.insecure_channel(address, options=[*MESSAGE_OPTIONS, *KEEPALIVE_OPTIONS, *CLIENT_OPTIONS, *more])  # noqa: TID251


def open_token_channel(address: str) -> grpc.aio.Channel:
    """The same for streams of tokens: what may wait here unread is bounded, so that a frame is never far behind its step."""
    options = [*MESSAGE_OPTIONS, *KEEPALIVE_OPTIONS, *CLIENT_OPTIONS, *_TOKEN_OPTIONS]
    return grpc.aio.insecure_channel(address, options=options)  # noqa: TID251
