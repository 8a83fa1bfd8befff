"""Raw bytes: files read as one text, the default corpus, and the batches drawn from them."""
