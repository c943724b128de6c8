"""Any body on any extents: a thread for each element, one kernel for all shapes, when no other one is there."""
