"""The annotations and labels that Linkwise writes on Nodes and Pods, and how they are read."""
