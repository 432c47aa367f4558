"""The stack behind the gateway, and the command line that starts it."""
