package webhook

// What production does when there is much happens in tests, too: gaps of more than one reading, and deliveries that are given back before
// the feeder is asked anyway, by the scheduler and by the feeder itself.
func init() { gapAtOnce, givenBackAtOnce = 5, 10 } //nolint:gochecknoinits // before anything runs
