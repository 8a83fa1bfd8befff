"""The gated delta rule of Gated DeltaNet."""
