"""What a machine is: its GPUs and links, from a driver's facts, a table or a record."""
