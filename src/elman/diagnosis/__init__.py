"""What is installed on this machine, what of it works, and what mends the rest."""
