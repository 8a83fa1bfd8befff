"""Text and scores from a trained model."""
