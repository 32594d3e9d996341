package transport

// Groups lets equal subscriptions share one execution.
type Groups struct{}
