package hook_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"parley/store"
	"parley/store/hook"
)

// TestListsShowEachOnceInItsPlace makes deliveries in every state there is, also such as are over by the rule alone. To readers it is
// all the same what stands in a row: they see each once, in its place, with each filter, in pages of any length.
func TestListsShowEachOnceInItsPlace(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		off, gone := newEndpoint(t, b.h, b.v, store.RunFinished), newEndpoint(t, b.h, b.v, store.RunFinished)
		endpoints := []string{b.p.ID, off.ID, gone.ID}
		want := map[string]store.DeliveryStatus{}
		of := map[string]*hook.Job{}
		later := b.s.Now().Add(time.Hour)
		test := func(endpoint string, status store.DeliveryStatus) {
			d, err := b.h.SendTest(t.Context(), b.v, endpoint, store.RunFinished)
			if err != nil {
				t.Fatal(err)
			}
			want[d.ID()], of[d.ID()] = status, &hook.Job{EndpointID: endpoint, Seq: d.Seq, EventID: d.EventID}
		}
		b.turns(3)
		b.set(off.ID, store.Disabled)
		b.turns(2) // skipped at birth
		for _, d := range b.deliveries() {
			if d.EndpointID == off.ID && d.Seq > 9 {
				want[d.ID()], of[d.ID()] = store.Skipped, &hook.Job{EndpointID: off.ID, Seq: d.Seq, EventID: d.EventID}
			}
		}
		if err := b.h.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, d := range b.deliveries() {
			if d.EndpointID == off.ID {
				want[d.ID()], of[d.ID()] = store.Skipped, &hook.Job{EndpointID: off.ID, Seq: d.Seq, EventID: d.EventID}
			}
		}
		b.set(off.ID, store.Enabled)
		b.turns(7)
		for _, endpoint := range endpoints {
			jobs := b.next(endpoint)
			jobs = jobs[len(jobs)-7:]
			for _, j := range b.next(endpoint) {
				want[j.ID()], of[j.ID()] = store.Pending, j
			}
			b.end(store.Delivered, nil, jobs[0], jobs[3])
			b.end(store.Failed, nil, jobs[1], jobs[4])
			b.end(store.Retrying, &later, jobs[2])
			for i, j := range jobs[3:5] { // and one of each again
				if err := b.resend(j.ID()); err != nil {
					t.Fatal(err)
				}
				want[j.ID()] = []store.DeliveryStatus{store.Delivered, store.Retrying}[i]
			}
			want[jobs[0].ID()], want[jobs[1].ID()], want[jobs[2].ID()] = store.Delivered, store.Failed, store.Retrying
		}
		test(b.p.ID, store.Pending)
		test(gone.ID, store.Skipped)
		test(off.ID, store.Pending)
		b.set(off.ID, store.Disabled)
		test(off.ID, store.Pending)
		if err := b.h.DeleteEndpoint(t.Context(), b.v, gone.ID); err != nil {
			t.Fatal(err)
		}
		for id, status := range want {
			isTest := b.delivery(id).Trigger == store.TriggerTest
			if of[id].EndpointID == b.p.ID || isTest {
				continue
			}
			switch status {
			case store.Pending:
				want[id] = store.Skipped
			case store.Retrying:
				want[id] = store.Failed
			}
		}
		turn(t, b.s, newBusiness(t, b.s), "") // somebody else

		expected := func(endpoint *string, status *store.DeliveryStatus) (ids []string) {
			for id, s := range want {
				if (endpoint == nil || of[id].EndpointID == *endpoint) && (status == nil || s == *status) {
					ids = append(ids, id)
				}
			}
			slices.SortFunc(ids, func(x, y string) int {
				a, b := of[x], of[y]
				return -cmp.Or(cmp.Compare(a.Seq, b.Seq), strings.Compare(a.EventID, b.EventID), strings.Compare(a.EndpointID, b.EndpointID))
			})
			return ids
		}
		ids := func(all []*hook.Delivery) (ids []string) {
			for _, d := range all {
				ids = append(ids, d.ID())
				if d.Status != want[d.ID()] {
					t.Errorf("%+v is not %s", d, want[d.ID()])
				}
				if waits := d.Status == store.Pending || d.Status == store.Retrying; waits && d.NextAttemptAt() == nil ||
					!waits && d.Status != store.Delivered && d.NextAttemptAt() != nil {
					t.Errorf("%+v has its next attempt at %v", d, d.NextAttemptAt())
				}
			}
			return ids
		}
		check := func(when string) {
			t.Helper()
			statuses := []*store.DeliveryStatus{nil}
			for _, s := range store.DeliveryStatuses {
				statuses = append(statuses, &s)
			}
			for _, status := range statuses {
				name := "all"
				if status != nil {
					name = string(*status)
				}
				for _, endpoint := range []*string{nil, &endpoints[0], &endpoints[1], &endpoints[2]} {
					want := expected(endpoint, status)
					for _, first := range []int{1, 2, 5, 100} {
						if got := ids(deliveries(t, b.h, b.v, hook.DeliveryFilter{EndpointID: endpoint, Status: status}, first)); !slices.Equal(got, want) {
							t.Errorf("%s, %s to %v in pages of %d: %d, want %d:\n%v\n%v", when, name, endpoint, first, len(got), len(want), got, want)
						}
					}
				}
				for page := (store.PageInput{First: 3}); ; {
					connections, err := b.h.DeliveriesOf(t.Context(), b.v.BusinessID, endpoints, status, page)
					if err != nil {
						t.Fatal(err)
					}
					var next *string
					for _, p := range endpoints {
						alone, err := b.h.Deliveries(t.Context(), b.v.BusinessID, hook.DeliveryFilter{EndpointID: &p, Status: status}, page)
						if err != nil {
							t.Fatal(err)
						}
						got := connections[p]
						if fmt.Sprint(ids(got.Nodes())) != fmt.Sprint(ids(alone.Nodes())) || got.PageInfo.HasNextPage != alone.PageInfo.HasNextPage {
							t.Errorf("%s, %s of several after %v: %v, alone %v", when, name, page.After, ids(got.Nodes()), ids(alone.Nodes()))
						}
						if p == endpoints[0] {
							next = alone.PageInfo.EndCursor
						}
					}
					if page.After = next; next == nil || !connections[endpoints[0]].PageInfo.HasNextPage {
						break
					}
				}
			}
			var some []string
			var seqs []int64
			for id, j := range of {
				if len(some) < 5 {
					some = append(some, id)
				}
				if j.Seq == 30 || j.Seq == 33 {
					seqs = append(seqs, j.Seq)
				}
			}
			rung, err := b.h.DeliveriesRung(t.Context(), b.v.BusinessID, some, seqs)
			if err != nil {
				t.Fatal(err)
			}
			got := ids(rung)
			for id, j := range of {
				if (slices.Contains(some, id) || slices.Contains(seqs, j.Seq)) != slices.Contains(got, id) {
					t.Errorf("%s, rung for %v and %v: %v", when, some, seqs, got)
				}
			}
		}
		check("by the rule")
		if err := b.h.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		check("swept")
	})
}

// TestDeliveriesAreTheBusinesssOwn: no id of another business's delivery says anything, nor does one that there is none of.
func TestDeliveriesAreTheBusinesssOwn(t *testing.T) {
	onBoth(t, func(t *testing.T, open opener) {
		b := newBench(t, open, nil)
		job := b.event()
		stranger := newBusiness(t, b.s)
		for name, id := range map[string]string{
			"another's": job.ID(), "of no endpoint": hook.DeliveryID(job.EventID, "whe_01a00000-0000-7000-8000-000000000000"),
			"of no event": hook.DeliveryID("evt_01a00000-0000-7000-8000-000000000000", b.p.ID), "garbled": "dlv_x", "empty": "",
		} {
			v := b.v
			if name == "another's" {
				v = stranger
			}
			_, err := b.h.Delivery(t.Context(), v.BusinessID, id)
			b.refused(name, err, "delivery_not_found")
			if _, err := b.h.Redeliver(t.Context(), v, id); err == nil {
				t.Errorf("%s was sent again", name)
			}
			if rung, err := b.h.DeliveriesRung(t.Context(), v.BusinessID, []string{id}, nil); err != nil || len(rung) != 0 {
				t.Errorf("%s: rung for %v, %v", name, rung, err)
			}
		}
		d := b.delivery(job.ID())
		if d.ID() != job.ID() || d.EventID != job.EventID || d.EndpointID != job.EndpointID || d.Lane != job.Lane || d.Seq != job.Seq || d.Attempts != 0 ||
			d.Trigger != store.TriggerAutomatic || d.CreatedAt != job.CreatedAt || d.ReplayID != nil || *d.NextAttemptAt() != d.CreatedAt {
			t.Errorf("it is %+v", d)
		}
		for _, after := range []string{"x", "aWQ6", "aWQ6MSwy"} { // of nothing; of no place
			_, err := b.h.Deliveries(t.Context(), b.v.BusinessID, hook.DeliveryFilter{}, store.PageInput{First: 1, After: &after})
			b.refused("after "+after, err, "validation_error")
		}
	})
}
