"""Rule files: vocabulary, predicates, the [fuse] table, packs, and the order of rules."""
