"""The reference ops, the naive oracle model and the vendor faces."""
