"""How many tokens to draft: fixed, or chosen from costs and acceptance rates."""
