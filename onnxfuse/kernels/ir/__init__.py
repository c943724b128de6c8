"""The typed program that a body is: its values, types and operators, and the passes over it."""
