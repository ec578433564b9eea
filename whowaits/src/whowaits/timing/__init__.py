"""How long things take: steps, batches, the model alone, and what follows from it."""
