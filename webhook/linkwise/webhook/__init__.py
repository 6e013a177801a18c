"""The admission webhook: it patches pods before they are stored, and refuses wrong annotations.

It is an optional program beside the extender (docs/decisions/kubernetes.md#12-the-webhook).
`patch`, `claims` and `verdict` are pure, `review` is the wire format, `template_reader` reads the
one object that is not in a request, `keeper` maintains the certificates, `server` serves the API
server.
"""
