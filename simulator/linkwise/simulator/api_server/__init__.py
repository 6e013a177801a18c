"""A stand-in for the API server, as faithful as Linkwise's own use of it needs.

Real HTTP, real rules for Pods, Nodes, Jobs and Events, and faults on demand. Tests and the demo
run it in a thread; docs/decisions/0002-api-server-stand-in.md says why it is our own.

kinds, refusals, metadata, patches, selectors, rules, history, store   pure
routes, watch, faults, app                                             HTTP
server                                                                 the thread
"""

from linkwise.simulator.api_server.server import ApiServer

__all__ = ["ApiServer"]
