package webhook

// Held is how many deliveries wait in memory, and Unwritten how many outcomes are known and not written.
func (w *Worker) Held() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.numbers.used
}

func (w *Worker) Unwritten() int { return len(w.permits) }

// InFlight is how many attempts are under way.
func (w *Worker) InFlight() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.flying.used
}

// MostUnwritten and MostHeld are the bounds of those.
const (
	MostUnwritten = maxUnwritten
	MostHeld      = maxNumbers
)

// Shards is under how many shards' holds something may begin.
func (w *Worker) Shards() int { return len(w.holds.all()) }
