"""The words of explanations."""
