"""Usage vectors through the whole gateway: a scripted provider says the payload, the ledger's entry is compared exactly."""
