"""Nodes with real kubelets and containers, and Linkwise deployed on them."""
