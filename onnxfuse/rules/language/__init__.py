"""The rule file language: vocabulary, predicates, the [fuse] table, rule packs, and rule order."""
