"""The OpenAI-compatible gateway in front of the fleet."""
