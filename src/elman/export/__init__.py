"""The folder in which a trained model leaves: what is in it, its writer and its reader."""
