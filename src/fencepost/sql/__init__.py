"""What the parts share in SQL: transactions that say what is safe to assume, and the fence table."""
