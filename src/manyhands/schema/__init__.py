"""The ground floor: forms that data has at the edges of the program. Nothing here imports torch."""
