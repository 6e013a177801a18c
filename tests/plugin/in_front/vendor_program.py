"""Vendors' device plugins that obey commands: the program (see scripted.py for its end here).

It plays one vendor after another: `settle` begins one, `leave` ends it.

It plays what NVIDIA's plugin does: one server and socket for each resource, lists in random order,
no way back from Unhealthy but a restart, and a restart of everything when the socket that it
registers at is created. Commands come as JSON, one a line, and the program answers each by a line.
"""

import json
import os
import random
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Condition, RLock, Thread
from typing import Any

import grpc

from linkwise.plugin.device_plugin.grpc_channel import reason_of
from linkwise.plugin.device_plugin.registration import Identity, identity
from linkwise.plugin.kubelet import deviceplugin_pb2 as wire
from linkwise.plugin.kubelet.deviceplugin_pb2_grpc import RegistrationStub

RETRY_SECONDS = 0.2  # NVIDIA's plugin waits for 30 s
UNKNOWN_FIELD = bytes([0xC2, 0x3E, 4]) + b"kept"  # field 1000, of a version to come


class Resource:
    """One resource: what it lists, how it answers, and its server while it serves."""

    def __init__(self, directory: Path, name: str, socket: str) -> None:
        self.name, self.socket = name, directory / socket
        self.endpoint = socket  # what it registers as
        self.version = "v1beta1"
        self.devices: dict[str, list[int]] = {}  # id -> NUMA nodes
        self.unhealthy: set[str] = set()
        self.options: dict[str, bool] = {"get_preferred_allocation_available": True}
        self.preference: list[str] | None = None  # what it prefers; the last ids where None
        self.errors: dict[str, list[str]] = {}  # method -> code, text
        self.hangs: list[str] = []  # methods that do not answer
        self.calls: list[dict[str, Any]] = []
        self.changed = Condition()
        self.version_of_list = 0
        self.life = 0
        self.server: grpc.Server | None = None

    def serve(self) -> None:
        self.life += 1
        self.server = grpc.server(ThreadPoolExecutor(16))
        handlers: dict[str, Any] = {
            method: grpc.unary_unary_rpc_method_handler(self.answering(method))
            for method in (
                "GetDevicePluginOptions",
                "GetPreferredAllocation",
                "Allocate",
                "PreStartContainer",
            )
        }
        handlers["ListAndWatch"] = grpc.unary_stream_rpc_method_handler(self.list_and_watch)
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),)
        )
        # Renamed into its place: the server before may still remove the path that it was bound to.
        bound = self.socket.with_name(f"{random.randrange(1 << 32):08x}.v")
        self.server.add_insecure_port(f"unix:{bound}")
        self.server.start()
        bound.rename(self.socket)

    @property
    def gone(self) -> bool:
        """Whether the socket was removed."""
        return self.server is not None and not self.socket.is_socket()

    def end(self) -> None:
        self.life += 1
        self.tell()
        if self.server is not None:
            self.server.stop(None).wait()
            self.server = None
            self.socket.unlink(missing_ok=True)
        self.unhealthy.clear()

    def tell(self) -> None:
        with self.changed:
            self.version_of_list += 1
            self.changed.notify_all()

    def register(self, where: Path) -> None:
        target, options = f"unix:{where}", (("grpc.default_authority", "localhost"),)
        with grpc.insecure_channel(target, options=options) as channel:
            RegistrationStub(channel).Register(
                wire.RegisterRequest(
                    version=self.version,
                    endpoint=self.endpoint,
                    resource_name=self.name,
                    options=wire.DevicePluginOptions(**self.options),
                ),
                timeout=20,
            )

    def list_and_watch(self, _: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        life, version = self.life, 0
        context.add_callback(self.tell)
        self.note("ListAndWatch", b"", context)
        self.behave("ListAndWatch", context)
        while context.is_active() and life == self.life:
            version = self.version_of_list
            yield self.listed() + UNKNOWN_FIELD
            with self.changed:
                self.changed.wait_for(
                    lambda seen=version: self.version_of_list != seen  # type: ignore[misc]
                )
            if "ListAndWatch" in self.errors:
                self.behave("ListAndWatch", context)

    def listed(self) -> bytes:
        ids = list(self.devices)
        random.shuffle(ids)
        return wire.ListAndWatchResponse(
            devices=[
                wire.Device(
                    ID=each,
                    health="Unhealthy" if each in self.unhealthy else "Healthy",
                    topology=wire.TopologyInfo(
                        nodes=[wire.NUMANode(ID=node) for node in self.devices[each]]
                    )
                    if self.devices[each]
                    else None,
                )
                for each in ids
            ]
        ).SerializeToString()

    def note(self, method: str, request: bytes, context: grpc.ServicerContext) -> None:
        left = context.time_remaining()
        seconds = left if left < 1e9 else None  # none where the caller waits forever
        self.calls.append({"method": method, "request": request.hex(), "seconds": seconds})

    def behave(self, method: str, context: grpc.ServicerContext) -> None:
        if method in self.errors:
            code, text = self.errors[method]
            context.abort(grpc.StatusCode[code], text)
        if method in self.hangs:
            context.add_callback(self.tell)
            with self.changed:
                self.changed.wait_for(lambda: method not in self.hangs or not context.is_active())
            if not context.is_active():
                self.calls.append({"method": f"{method} given up"})

    def answering(self, method: str) -> Any:
        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            self.note(method, request, context)
            self.behave(method, context)
            return bytes(getattr(self, method)(request))

        return answer

    # ruff: noqa: ARG002, N802 - as the kubelet calls them
    def GetDevicePluginOptions(self, request: bytes) -> bytes:
        return wire.DevicePluginOptions(**self.options).SerializeToString()

    def PreStartContainer(self, request: bytes) -> bytes:
        return UNKNOWN_FIELD

    def GetPreferredAllocation(self, request: bytes) -> bytes:
        asked = wire.PreferredAllocationRequest.FromString(request)
        response = wire.PreferredAllocationResponse()
        for each in asked.container_requests:
            last = sorted(each.available_deviceIDs)[-each.allocation_size :]
            ids = last if self.preference is None else self.preference
            response.container_responses.add(deviceIDs=ids)
        return response.SerializeToString() + UNKNOWN_FIELD

    def Allocate(self, request: bytes) -> bytes:
        asked = wire.AllocateRequest.FromString(request)
        response = wire.AllocateResponse()
        for each in asked.container_requests:
            gpus = sorted({device.partition("::")[0] for device in each.devices_ids})
            response.container_responses.add(
                envs={"VENDOR_SAYS": ",".join(gpus)},
                mounts=[wire.Mount(container_path="/mps", host_path="/run/mps", read_only=True)],
                cdi_devices=[wire.CDIDevice(name=f"vendor.example/gpu={gpu}") for gpu in gpus],
            )
        return response.SerializeToString() + UNKNOWN_FIELD


class Vendor:
    """All resources. `watch`: whether it restarts when the socket it registers at is created;
    `watch_own`: when a socket of its own is gone."""

    def __init__(self, directory: Path, where: Path) -> None:
        self.directory, self.where = directory, where
        self.resources: dict[str, Resource] = {}
        self.lock = RLock()
        self.watch, self.watch_own = True, False
        self.starts = 0
        self.retry_at: float | None = None
        self.seen: Identity | None = None  # the socket that it need not restart for
        self.left = False
        Thread(target=self.look, daemon=True).start()

    def leave(self) -> None:
        with self.lock:
            self.left = True
            for resource in self.resources.values():
                resource.end()

    def begin(self) -> None:
        with self.lock:
            self.starts += 1
            self.retry_at = None
            self.seen = identity(self.where)
            for resource in self.resources.values():
                resource.end()
            for resource in self.resources.values():
                resource.serve()
                try:
                    resource.register(self.where)
                except grpc.RpcError as error:
                    refused = reason_of(error)
                    resource.calls.append({"method": "Register", "refused": refused})
                    resource.end()
                    self.retry_at = time.monotonic() + RETRY_SECONDS
                    return

    def look(self) -> None:
        while True:
            with self.lock:
                if self.left:
                    return
                now = identity(self.where)
                created = now is not None and now != self.seen
                self.seen = now
                due = self.retry_at is not None and time.monotonic() > self.retry_at
                gone = any(each.gone for each in self.resources.values())
                if (created and self.watch) or (gone and self.watch_own) or due:
                    self.begin()
            time.sleep(0.01)

    def obey(self, command: dict[str, Any]) -> Any:
        with self.lock:
            return getattr(self, f"do_{command.pop('do')}")(**command)

    def do_watch(self, on: bool) -> None:
        self.watch = on

    def do_watch_own(self, on: bool) -> None:
        self.watch_own = on

    def do_begin(self) -> None:
        self.begin()

    def do_starts(self) -> int:
        return self.starts

    def do_offer(self, resource: str, socket: str, **behaviour: Any) -> None:
        """A resource; it is served at the next beginning, which a socket that is there already does
        not cause: a test says when, and one beginning must not come on top of another."""
        self.seen = identity(self.where)
        self.resources[resource] = Resource(self.directory, resource, socket)
        self.do_set(resource, **behaviour)

    def do_drop(self, resource: str) -> None:
        self.resources.pop(resource).end()

    def do_set(self, resource: str, **behaviour: Any) -> None:
        found = self.resources[resource]
        for name, value in behaviour.items():
            getattr(found, name)  # a word that means nothing is a mistake of the test
            setattr(found, name, set(value) if name == "unhealthy" else value)
        found.tell()

    def do_register(self, resource: str) -> str:
        """Once more, with the server as it is; the text of a refusal."""
        try:
            self.resources[resource].register(self.where)
        except grpc.RpcError as error:
            return reason_of(error)
        return ""

    def do_end_lists(self, resource: str) -> None:
        found = self.resources[resource]
        found.life += 1
        found.tell()

    def do_calls(self, resource: str) -> list[dict[str, Any]]:
        return self.resources[resource].calls


def main() -> None:
    for line in sys.stdin:
        command, answer = json.loads(line), None
        if command["do"] == "settle":
            vendor = Vendor(Path(command["directory"]), Path(command["where"]))
        elif command["do"] == "leave":
            vendor.leave()
        else:
            answer = vendor.obey(command)
        print(json.dumps(answer), flush=True)
    os._exit(0)  # the parent process is gone; the servers' threads would stay forever


if __name__ == "__main__":
    main()
