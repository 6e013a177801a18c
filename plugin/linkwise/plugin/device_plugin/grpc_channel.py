"""Calls the kubelet's gRPC servers from Python, and words their refusals."""

from pathlib import Path

import grpc

_OPTIONS = (
    # Go servers refuse the socket's path, which grpcio would send (grpc/grpc#38142).
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    # Shared subchannels keep the back-off of a kubelet that is gone.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),  # a kubelet that restarts is back in seconds
    ("grpc.max_receive_message_length", 16 << 20),  # the kubelet's own limit for podresources
)


def dial(socket: Path) -> grpc.Channel:
    return grpc.insecure_channel(f"unix:{socket}", options=_OPTIONS)


def reason_of(error: object) -> str:
    """The reason of a failed call. An error of grpcio is also the call, with code and details."""
    return f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else str(error)
