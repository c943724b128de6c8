"""What is known of the elements of values: indices, masks, whole numbers."""
