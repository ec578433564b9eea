"""Prefect flows: the order in which stages run, what people see of it, and nothing of what the
stages compute.
"""
