"""`python -m study evaluate`: a recorded policy plays again, in numbers and in pictures."""
