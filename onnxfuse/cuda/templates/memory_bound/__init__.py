"""The templates that memory bandwidth bounds, planned by one planner."""
