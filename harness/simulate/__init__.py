"""The simulator: seeded runs of pure cores, of one store and of whole nodes, each judged by the checkers."""
