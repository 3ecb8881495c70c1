"""Runs programs: mapped code and weights, the executor and its worker threads, sessions, profiles.  No compiler in here."""
