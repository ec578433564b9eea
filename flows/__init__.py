"""Prefect flows: the order in which stages run, what people see of it, and nothing of what the
stages compute.
"""

from throughline.shared.garbage import pause_garbage_collection

COMMANDS = ("comparison", "prepare_data", "training")
pause_garbage_collection("flows", COMMANDS)
