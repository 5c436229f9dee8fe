"""A trained model as an ordinary Hugging Face folder, whoever trained it."""
