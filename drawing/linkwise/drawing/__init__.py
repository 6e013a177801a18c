"""What several programs show: drawings of machines and of pods in time, tables, and amounts in
words."""
