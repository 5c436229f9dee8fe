"""Export of a trained model as an ordinary Hugging Face folder."""
