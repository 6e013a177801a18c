"""What the API server says of nodes and pods, with what is assumed until it does."""
