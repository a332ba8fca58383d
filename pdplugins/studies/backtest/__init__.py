"""What a planner would have given on traffic that has been: ``pdplugins backtest``."""
