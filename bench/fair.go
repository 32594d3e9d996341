package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// benchFair compares the rate of the endpoints that answer, each on its own, while 1, 10 and 50 of 100 never do, with their
// rate while all do, and then with 50 that answer after 150 ms. The load is whatever keeps those that answer busy; a delivery to the others times out after 10 s.
func benchFair(ctx context.Context, r *rig) error {
	hanging := []int{1, 10, 50}
	const slow, answer = 50, 150 * time.Millisecond
	ratios, note, err := r.repeat(ctx, func(ctx context.Context) (string, []float64, error) {
		none, slowest, err := r.fairRate(ctx, 0, 0)
		if err != nil {
			return "", nil, err
		}
		var ratios []float64
		line := fmt.Sprintf("deliveries a second and endpoint (slowest), none of %d hanging %.1f (%.1f)", endpoints, none, slowest)
		for _, n := range hanging {
			rate, slowest, err := r.fairRate(ctx, n, 0)
			if err != nil {
				return "", nil, err
			}
			line += fmt.Sprintf("; %d: %.1f (%.1f), ratio %.2f", n, rate, slowest, rate/none)
			ratios = append(ratios, rate/none)
		}
		rate, slowest, err := r.fairRate(ctx, slow, answer)
		if err != nil {
			return "", nil, err
		}
		line += fmt.Sprintf("; %d after %v: %.1f (%.1f), ratio %.2f", slow, answer, rate, slowest, rate/none)
		return line, append(ratios, rate/none), nil
	})
	if err != nil {
		return err
	}
	fmt.Printf("fair, %s: ratios %.2f with %d of %d hanging and with %d that answer after %v (gate 0.80, aim 1.0; %s)\n", r.mode, ratios, hanging, endpoints, slow, answer, note)
	return nil
}

// fairRate is the mean rate of the endpoints that answer at once, and that of the slowest. The others never do, or after a while.
func (r *rig) fairRate(ctx context.Context, hanging int, answer time.Duration) (mean, slowest float64, err error) {
	d, err := r.startDeliveries(ctx, hanging, answer)
	if err != nil {
		return 0, 0, err
	}
	defer d.end()
	rates, err := d.run(r)
	if err != nil {
		return 0, 0, err
	}
	rates = rates[hanging:]
	return sum(rates) / float64(len(rates)), slices.Min(rates), nil
}
