"""What machine is this: descriptions of processing units, found by asking (`probe`) and measuring (`rates`)."""
