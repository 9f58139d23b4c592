"""Who may do what at a broker: users, their rights, and what each request needs. Pure but for its log of refusals."""
