"""The embedded server: a simulated large model and judge behind the OpenAI protocol."""
