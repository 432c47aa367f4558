"""vLLM as we start it: the plugin every engine process loads, the worker's entry, flags by device."""
