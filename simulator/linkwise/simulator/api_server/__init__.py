"""A stand-in for the API server, as faithful as Linkwise's use of it needs.

It speaks real HTTP, keeps the rules for Pods, Nodes, Jobs and Events, and fails on demand. Tests
and the demo run it in a thread. docs/decisions/0002-api-server-stand-in.md says why it exists.

The modules here are pure: what the API server stores, changes and refuses. `http` serves them.
"""

from linkwise.simulator.api_server.http.server import ApiServer

__all__ = ["ApiServer"]
