"""Evaluators in other processes or on a device, with the rows of one evaluator in this process."""
