"""The admission webhook: what is added to a pod before it is stored, and what is refused by then.

A program of its own beside the extender, and optional (docs/decisions/0012-the-webhook.md).
`patch` and `verdict` are pure; `review` is the wire format, `keeper` keeps the certificates,
`server` answers the API server.
"""
