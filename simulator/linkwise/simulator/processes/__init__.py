"""Starts the real programs as child processes that end with this one."""
