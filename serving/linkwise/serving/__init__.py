"""Ports that strangers reach: who gets a place, who is known, and how a call is read."""
