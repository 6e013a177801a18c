"""Explains from a snapshot why pods and gangs are where they are, or why they wait."""
