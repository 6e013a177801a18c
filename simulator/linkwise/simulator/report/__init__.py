"""Records what happened to every pod, and shows it as text and as HTML."""
