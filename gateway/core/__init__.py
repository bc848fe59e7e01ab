"""Values and errors of the gateway: frozen, standard library only, no I/O."""
