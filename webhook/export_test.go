package webhook

// Tests have gaps of more than one reading.
func init() { gapAtOnce = 5 } //nolint:gochecknoinits // before anything runs
