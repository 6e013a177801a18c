"""The core's inputs and outputs as values: objects as read, calls, answers, actions."""
