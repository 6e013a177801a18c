"""What a cluster's last weeks would have been with Linkwise: its own history, replayed."""
