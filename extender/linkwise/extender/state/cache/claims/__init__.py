"""GPUs that a DRA driver gives out by resource claims: what is known of them, and who has them."""
