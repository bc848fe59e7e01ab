"""What a call took and what it costs: token counts, dated prices, worst cases."""
