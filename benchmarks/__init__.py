"""What was measured, how, and the results it wrote (results/<date>-<name>/)."""
