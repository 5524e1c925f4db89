"""How a ladder learns: one recipe, one loop, one member or many."""
