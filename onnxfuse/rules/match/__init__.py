"""Match a pattern at a node, explain a refusal, and insert a replacement."""
