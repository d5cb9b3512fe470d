"""Tables of a study as values and as text: views of its estimates that do no arithmetic. Imports no engine."""
