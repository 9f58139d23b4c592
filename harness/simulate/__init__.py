"""The simulator: seeded runs of pure cores, of one store and of whole nodes, each checked by the checkers of histories."""
