"""Error metrics, error budgets and tolerances."""
