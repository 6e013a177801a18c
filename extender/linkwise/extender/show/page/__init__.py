"""The live page as values: what each of its parts shows, and what of that can change."""
