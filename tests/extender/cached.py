"""What the API server knows, in a cache without a core."""

from linkwise.extender.state.cache.cache import Cache
from linkwise.extender.state.cache.ingest import Ingest
from linkwise.extender.state.timers import Agenda
from tests.extender.cluster import GPU, Cluster


def cached(at: Cluster) -> Cache:
    reader, cache = Ingest((GPU,), Agenda()), Cache()
    for node in at.nodes.values():
        cache.put_node(reader.node(node))
    for pod in at.pods.values():
        cache.put_pod(reader.follow(pod, at.now))
    return cache
