"""Where the money and the time go, to look at: a Streamlit app that reads the ledger and never writes."""
