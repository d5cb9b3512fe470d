"""A person's own RLlib script: reading its configuration, and what is known of it."""
