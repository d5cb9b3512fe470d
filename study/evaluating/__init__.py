"""`python -m study evaluate`: a recorded policy plays again, or a random one, in numbers and in pictures."""
