"""Question sets, problems in pieces, and the protocol of simulated users."""
