"""What callers pass: arguments, options, models."""
