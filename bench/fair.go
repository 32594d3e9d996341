package main

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// benchFair compares the rate of the endpoints that answer, each on its own, while 1, 10 and 50 of 100 never do, with their
// rate while all do. The load is whatever keeps those that answer busy; a delivery to the others times out after 10 s.
func benchFair(ctx context.Context, r *rig) error {
	// An endpoint that hangs costs nothing before its slots are full, and a while later it is parked.
	x := *r
	x.warmup, x.rounds = r.warmup+500*time.Millisecond, min(r.rounds, 2)
	hanging := []int{1, 10, 50}
	ratios := make([][]float64, len(hanging))
	for range x.rounds {
		none, _, err := x.fairRate(ctx, 0)
		if err != nil {
			return err
		}
		line := fmt.Sprintf("fair, %s: deliveries a second and endpoint, none of %d hanging %.1f", r.mode, endpoints, none)
		for i, n := range hanging {
			rate, slowest, err := x.fairRate(ctx, n)
			if err != nil {
				return err
			}
			line += fmt.Sprintf("; %d: %.1f, slowest %.1f, ratio %.2f", n, rate, slowest, rate/none)
			ratios[i] = append(ratios[i], rate/none)
		}
		fmt.Println(line)
	}
	r.started = x.started
	for i, n := range hanging {
		fmt.Printf("fair, %s: ratio %.2f with %d of %d hanging (gate 0.80, aim 1.0)\n", r.mode, median(ratios[i]), n, endpoints)
	}
	return nil
}

// fairRate is the mean rate of the endpoints that answer, and that of the slowest.
func (r *rig) fairRate(ctx context.Context, hanging int) (mean, slowest float64, err error) {
	d, err := r.startDeliveries(ctx, hanging)
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
