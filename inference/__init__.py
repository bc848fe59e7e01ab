"""The embedded torch engine and the adapters to other engines; imports nothing of the gateway's."""
