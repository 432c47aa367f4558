"""What tests of several folders share: running stacks, scripted deployments, calls."""
