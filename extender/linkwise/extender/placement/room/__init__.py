"""What a placement takes from the pods to come, by the kinds of pods that came so far."""
