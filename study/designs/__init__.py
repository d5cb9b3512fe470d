"""The kinds of study: what each asks of its trials, and what it concludes from their records."""
