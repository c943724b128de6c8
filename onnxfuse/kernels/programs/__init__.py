"""Launch programs: what the planner of an op decides, for all shapes of a kind, without the planner.

`family` runs the planner on numbers that carry where they come from; `tape` is what it leaves, to be evaluated
anywhere.
"""
