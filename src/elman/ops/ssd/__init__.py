"""The scalar-decay recurrence of Mamba2 (state space duality)."""
