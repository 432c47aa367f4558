"""The whole stack on one machine: time to ready, idle cost, speed of one stream, memory."""
