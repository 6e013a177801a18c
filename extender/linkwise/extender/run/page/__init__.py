"""The live page: what browsers get, and whom its changes are sent to."""
