"""The ledger of one node: entries and their index in files, and what a start trusts of them."""
