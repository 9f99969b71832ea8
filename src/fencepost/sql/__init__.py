"""What the parts share in SQL: transactions that say what is safe to assume, and the fence table.

``fencepost.sql.guards`` is for applications: guards of their own statements, gates, and done-once.
"""
