"""What there is without pdplugins, for comparison."""
