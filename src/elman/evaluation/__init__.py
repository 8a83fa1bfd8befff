"""What a trained model is asked: text, and scores."""
