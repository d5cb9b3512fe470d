"""What would make a study fail here, or its numbers wrong: `asking` finds the facts, `checks` judge them."""
