"""The roof that joins the wings: packs rows, runs passes, chooses tokens, answers strategies."""
