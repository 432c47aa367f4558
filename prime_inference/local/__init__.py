"""The whole stack on one machine: what `prime-inference up` starts, watches and stops."""
