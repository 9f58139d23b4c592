"""What is kept of a store, what is deleted, and copies of it: retention, backup, scrub, cuts."""
