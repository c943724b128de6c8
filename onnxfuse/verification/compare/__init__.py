"""Run both models on each case and judge the differences."""
