"""`kubectl linkwise doctor`: what is missing for Linkwise, and where."""
