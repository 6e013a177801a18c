"""The kubelet's gRPC messages and services, generated from `proto/` by `make proto`; never edited."""
