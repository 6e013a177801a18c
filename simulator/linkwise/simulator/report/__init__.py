"""Records what became of every pod, and shows it as text and as HTML."""
