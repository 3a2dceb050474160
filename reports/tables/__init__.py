"""Records as tables: one module a subject, each a function from a ledger to `Table`s."""
