"""What the plugin says to a Go server before the first message is read."""

import socket
from pathlib import Path

from linkwise.plugin.device_plugin.grpc_channel import dial
from linkwise.plugin.kubelet import deviceplugin_pb2 as api
from linkwise.plugin.kubelet.deviceplugin_pb2_grpc import RegistrationStub

_EMPTY_SETTINGS = b"\0\0\0\x04\0\0\0\0\0"  # the HTTP/2 frame that a server opens with


def heard_by_a_kubelet(path: Path) -> bytes:
    """The bytes of a first call, up to the name of its method and what stands around it.

    A Python server hides `:authority`, so this one is a bare socket.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(10)
        channel = dial(path)
        call = RegistrationStub(channel).Register.future(api.RegisterRequest(), timeout=30)
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(10)
            connection.sendall(_EMPTY_SETTINGS)
            heard = b""
            while b"Register" not in heard:
                heard += connection.recv(4096)
            call.cancel()
        channel.close()
    return heard


def test_the_authority_is_localhost_and_not_the_path_of_the_socket(tmp_path: Path) -> None:
    """Go's servers refuse a percent-encoded path there (grpc/grpc#38142)."""
    heard = heard_by_a_kubelet(tmp_path / "kubelet.sock")
    assert b"localhost" in heard
    assert b"kubelet.sock" not in heard
