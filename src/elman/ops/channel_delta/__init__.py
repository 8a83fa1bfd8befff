"""The delta rule with a decay for each key channel: KDA, Gated DeltaNet 2 and RWKV-7."""
