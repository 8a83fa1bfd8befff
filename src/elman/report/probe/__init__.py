"""The page of ``mode=probe``: what the states of one run or of several remember."""
