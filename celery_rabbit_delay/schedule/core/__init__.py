"""What the streams contain. Pure."""
