"""The admission webhook: it patches pods before they are stored, and refuses wrong annotations.

It is an optional program beside the extender (docs/decisions/0012-the-webhook.md). `patch` and
`verdict` are pure, `review` is the wire format, `keeper` maintains the certificates, `server`
serves the API server.
"""
