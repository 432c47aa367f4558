"""One attempt after another at a deployment, and its answer handed to the client byte for byte."""
