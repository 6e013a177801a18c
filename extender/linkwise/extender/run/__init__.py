"""Everything with a thread, a clock or a socket: watches, writes, leadership, metrics, ports."""
