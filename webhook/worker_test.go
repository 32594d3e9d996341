package webhook_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"parley/e2e/servers"
	"parley/egress"
	"parley/store"
	"parley/store/hook"
	"parley/stream"
	"parley/webhook"
)

// world is a store, a stream and a worker of a test's own.
type world struct {
	t      *testing.T
	url    string // of the database
	store  *store.Store
	hooks  *hook.Hooks
	viewer *store.Viewer
	rang   chan struct{} // a stroke of the bell: something may have settled
	stop   func()

	worker *webhook.Worker
	deaf   atomic.Bool // the worker is not told of what the bell brings
}

func newWorld(t *testing.T, dir string, change func(*webhook.Config)) *world {
	t.Helper()
	return newWorldOn(t, "file:"+filepath.Join(dir, "parley.db"), change)
}

func TestMain(m *testing.M) {
	code := m.Run()
	servers.StopShared()
	os.Exit(code)
}

// onBoth runs a test on SQLite and on PostgreSQL.
func onBoth(t *testing.T, test func(t *testing.T, url string)) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		test(t, "file:"+filepath.Join(t.TempDir(), "parley.db"))
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		test(t, servers.Database(t))
	})
}

func newWorldOn(t *testing.T, url string, change func(*webhook.Config)) *world {
	t.Helper()
	var worker *webhook.Worker
	rang := make(chan struct{}, 1)
	w := &world{t: t, url: url, rang: rang}
	bell, err := stream.Open(stream.Config{Receive: func(e []stream.Entry) {
		if !w.deaf.Load() {
			worker.Offer(e)
		}
		select {
		case rang <- struct{}{}:
		default:
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	guard, err := egress.NewGuard(egress.Policy{AllowPrivate: true})
	if err != nil {
		t.Fatal(err)
	}
	cfg := webhook.Config{
		Stream: bell, Client: egress.NewClient(guard, 64), Timeout: 2 * time.Second,
		Policy: webhook.Policy{Retries: 2, Backoff: 10 * time.Millisecond}, Drain: time.Second,
	}
	if change != nil {
		change(&cfg)
	}
	sealer, err := store.NewSealer(base64.StdEncoding.EncodeToString(make([]byte, 32)))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Store, err = store.Open(t.Context(), store.Config{URL: url, Sealer: sealer, SessionTTL: time.Hour, Committed: bell.Publish})
	if err != nil {
		t.Fatal(err)
	}
	cfg.Hooks = hook.New(hook.Config{
		Store: cfg.Store, NewSecret: egress.NewSecret,
		Changed: func(business string) {
			worker.Changed(business)
			bell.PublishDeliveries(business)
		},
		DeliveriesChanged: bell.PublishDeliveries,
	})
	worker = webhook.New(cfg)
	if err := worker.Prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = worker.Run(ctx) })
	running.Go(func() { _ = bell.Run(ctx) })
	w.store, w.hooks, w.worker = cfg.Store, cfg.Hooks, worker
	w.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		if err := cfg.Store.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(w.stop)
	_, err = cfg.Store.CreateBusiness(t.Context(), store.BusinessInput{Name: "test", Token: "at_token", APIKey: "sk_key", IfEmpty: true, Agent: &store.Agent{
		ID: "demo", Name: "Demo", OnConcurrent: store.Enqueue, Knowledge: []store.Knowledge{}, ChannelProfiles: []store.ChannelProfile{},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if w.viewer, err = cfg.Store.Authenticate(t.Context(), store.KindAccessToken, "at_token"); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) endpoint(url string, types ...store.EventType) (*hook.Endpoint, string) {
	w.t.Helper()
	p, secret, err := w.hooks.CreateEndpoint(w.t.Context(), w.viewer, hook.EndpointInput{URL: &url, Events: types})
	if err != nil {
		w.t.Fatal(err)
	}
	return p, secret
}

// turn runs one turn of a session, and returns the session.
func (w *world) turn(session string) string {
	w.t.Helper()
	turn, err := w.store.BeginTurn(w.t.Context(), store.TurnInput{
		BusinessID: w.viewer.BusinessID, AgentID: "demo", SessionID: session, Channel: store.SMS, Text: "Hello", Lease: time.Minute,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.store.FinishTurn(w.t.Context(), turn, "Hi", store.RunStep{Model: "m", Usage: store.TokenUsage{Source: store.UsageNone}}); err != nil {
		w.t.Fatal(err)
	}
	return turn.SessionID
}

// settled waits until no delivery to the endpoint waits any more, and returns all, oldest first.
func (w *world) settled(endpoint string, n int) []*hook.Delivery {
	w.t.Helper()
	return w.await(endpoint, func(all []*hook.Delivery) bool {
		return len(all) == n && !slices.ContainsFunc(all, func(d *hook.Delivery) bool { return d.Due != nil })
	})
}

// await waits until the endpoint's deliveries are as they are to be, and returns them, oldest first.
func (w *world) await(endpoint string, ok func([]*hook.Delivery) bool) []*hook.Delivery {
	w.t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		c, err := w.hooks.Deliveries(context.Background(), w.viewer.BusinessID, hook.DeliveryFilter{EndpointID: &endpoint}, store.PageInput{First: 100})
		if err != nil {
			w.t.Fatal(err)
		}
		all := c.Nodes()
		if ok(all) {
			slices.Reverse(all)
			return all
		}
		select {
		case <-w.rang:
		case <-deadline:
			w.t.Fatalf("%d deliveries have not settled: %+v", len(all), all)
		}
	}
}

// receiver is a customer's server: it takes down what comes, and answers as told.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	requests []request
}

type request struct {
	header http.Header
	body   []byte
}

func newReceiver(t *testing.T, answer http.HandlerFunc) *receiver {
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		r.mu.Lock()
		r.requests = append(r.requests, request{req.Header, body})
		r.mu.Unlock()
		req.Body = io.NopCloser(bytes.NewReader(body))
		if answer != nil {
			answer(w, req)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func (r *receiver) got() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.requests)
}

func (r *receiver) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.requests)
}

func TestDeliveryIsSignedAndExact(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		w := newWorldOn(t, url, nil)
		r := newReceiver(t, nil)
		p, secret := w.endpoint(r.URL+"/hook", store.EventTypes...)
		w.turn("")
		all := w.settled(p.ID, 3)
		oracle, err := standardwebhooks.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		events, err := w.store.EventsAfter(t.Context(), w.viewer.BusinessID, 0, 100, nil, 100)
		if err != nil {
			t.Fatal(err)
		}
		got := r.got()
		if len(got) != 3 {
			t.Fatalf("%d requests", len(got))
		}
		for i, req := range got {
			h := req.header
			if err := oracle.Verify(req.body, h); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
			if string(req.body) != string(events[i].Body) || h.Get("Webhook-Id") != events[i].ID {
				t.Errorf("request %d is not event %d", i, i)
			}
			if h.Get("User-Agent") != "Backend-System-Webhook/1.0" || h.Get("Content-Type") != "application/json" {
				t.Errorf("request %d: headers %v", i, h)
			}
			if at, err := strconv.ParseInt(h.Get("Webhook-Timestamp"), 10, 64); err != nil || time.Since(time.Unix(at, 0)).Abs() > time.Minute {
				t.Errorf("request %d: timestamp %q", i, h.Get("Webhook-Timestamp"))
			}
			if all[i].Status != store.Delivered {
				t.Errorf("delivery %d is %s", i, all[i].Status)
			}
		}
	})
}

func TestFailuresAreRetriedAndRecorded(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		w := newWorldOn(t, url, func(c *webhook.Config) { c.Timeout = 200 * time.Millisecond })
		stop := make(chan struct{})
		kinds := map[string]struct {
			answer   http.HandlerFunc
			status   store.DeliveryStatus
			attempts int
			failure  string
		}{
			"always 500": {func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusInternalServerError)
				_, _ = w.Write([]byte("sorry\x00\xff"))
			}, store.Failed, 3, "http_500"},
			"redirect": {func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
			}, store.Failed, 3, "http_307"},
			"hangs":  {func(http.ResponseWriter, *http.Request) { <-stop }, store.Failed, 3, "timeout"},
			"resets": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, store.Failed, 3, "connection_reset"},
			"gone":   {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusGone) }, store.Failed, 1, "http_410"},
			"answers, and its body hangs": {func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusOK)
				_ = http.NewResponseController(w).Flush()
				<-stop
			}, store.Delivered, 1, ""},
			"an endless body": {func(w http.ResponseWriter, r *http.Request) {
				for r.Context().Err() == nil {
					if _, err := w.Write(make([]byte, 64<<10)); err != nil {
						return
					}
				}
			}, store.Delivered, 1, ""},
		}
		endpoints := map[string]*hook.Endpoint{}
		for name, k := range kinds {
			endpoints[name], _ = w.endpoint(newReceiver(t, k.answer).URL, store.RunFinished)
		}
		t.Cleanup(func() { close(stop) }) // before the receivers close: they wait for what hangs
		w.turn("")
		for name, k := range kinds {
			d := w.settled(endpoints[name].ID, 1)[0]
			attempts, err := w.hooks.AttemptsOf(t.Context(), []string{d.Key()})
			if err != nil {
				t.Fatal(err)
			}
			made := attempts[d.Key()]
			if d.Status != k.status || len(made) != k.attempts {
				t.Errorf("%s: %s after %d attempts, want %s after %d", name, d.Status, len(made), k.status, k.attempts)
				continue
			}
			last := made[len(made)-1]
			if failure := last.Error; (failure == nil) != (k.failure == "") || failure != nil && *failure != k.failure {
				t.Errorf("%s: failure %v, want %q", name, last.Error, k.failure)
			}
			if name == "always 500" && (*last.ResponseBody != "sorry\uFFFD" || *last.StatusCode != 500 || last.Number != 3) {
				t.Errorf("%s: recorded %+v", name, last)
			}
		}
		gone, err := w.hooks.Endpoint(t.Context(), w.viewer.BusinessID, endpoints["gone"].ID)
		if err != nil || gone.Status != store.Disabled || gone.DisabledReason == nil {
			t.Errorf("after 410: %+v, %v", gone, err)
		}
		w.turn("")
		if all := w.settled(gone.ID, 2); all[1].Status != store.Skipped {
			t.Errorf("the next event for a disabled endpoint is %s", all[1].Status)
		}
	})
}

// TestConversationIsInOrder has a receiver that takes its time with the first of each conversation: the later ones of the
// same conversation wait for it, those of others do not.
func TestConversationIsInOrder(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		w := newWorldOn(t, url, nil)
		release := make(chan struct{})
		var mu sync.Mutex
		order := map[string][]int64{}
		begun := make(chan string, 100)
		r := newReceiver(t, func(_ http.ResponseWriter, req *http.Request) {
			doc, _ := io.ReadAll(req.Body)
			e, err := store.ParseEvent(doc, 0)
			if err != nil {
				t.Error(err)
				return
			}
			d, err := e.Details()
			if err != nil {
				t.Error(err)
				return
			}
			begun <- *e.SessionID
			if *d.Sequence == 1 {
				<-release
			}
			mu.Lock()
			defer mu.Unlock()
			order[*e.SessionID] = append(order[*e.SessionID], int64(*d.Sequence))
		})
		p, _ := w.endpoint(r.URL, store.EventTypes...)
		sessions := []string{w.turn(""), w.turn(""), w.turn("")}
		for _, s := range sessions {
			w.turn(s)
		}
		first := map[string]bool{}
		for len(first) < len(sessions) { // each conversation has begun, though none has got any further
			first[<-begun] = true
		}
		mu.Lock()
		if len(order) != 0 {
			t.Errorf("something overtook: %v", order)
		}
		mu.Unlock()
		close(release)
		w.settled(p.ID, 18)
		for _, s := range sessions {
			if want := []int64{1, 2, 3, 4, 5, 6}; !slices.Equal(order[s], want) {
				t.Errorf("session %s came as %v", s, order[s])
			}
		}
	})
}

// TestHangingEndpointDelaysNoOther fills an endpoint that hangs with more than its slots; a healthy one still gets all of
// its deliveries, and after the other recovers it gets all of its own, in order.
func TestHangingEndpointDelaysNoOther(t *testing.T) {
	t.Parallel()
	w := newWorld(t, t.TempDir(), func(c *webhook.Config) { c.Timeout = 30 * time.Second })
	release := make(chan struct{})
	recover := sync.OnceFunc(func() { close(release) })
	hanging := newReceiver(t, func(http.ResponseWriter, *http.Request) { <-release })
	t.Cleanup(recover)
	healthy := newReceiver(t, nil)
	slow, _ := w.endpoint(hanging.URL, store.RunFinished)
	fast, _ := w.endpoint(healthy.URL, store.RunFinished)
	const n = 60
	for range n {
		w.turn("")
	}
	w.settled(fast.ID, n)
	if got := len(hanging.got()); got > 8 {
		t.Errorf("%d attempts at once to one endpoint", got)
	}
	recover()
	for i, d := range w.settled(slow.ID, n) {
		if d.Status != store.Delivered || d.Attempts != 1 {
			t.Fatalf("delivery %d: %s after %d attempts", i, d.Status, d.Attempts)
		}
	}
	if got := len(hanging.got()); got != n {
		t.Errorf("%d requests for %d deliveries", got, n)
	}
}

// TestHalfOfAllHang has 50 of 100 endpoints hang: the others get everything, their replays and resends too, while those still do
// and not one of their attempts has ended.
func TestHalfOfAllHang(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		w := newWorldOn(t, url, func(c *webhook.Config) { c.Timeout = time.Hour })
		hanging, healthy := hang(t), newReceiver(t, nil)
		var slow, fast []*hook.Endpoint
		for range 50 {
			p, _ := w.endpoint(hanging.URL, store.RunFinished)
			slow = append(slow, p)
			p, _ = w.endpoint(healthy.URL, store.RunFinished)
			fast = append(fast, p)
		}
		const n = 12
		begun := store.Now()
		for range n {
			w.turn("")
		}
		for _, p := range fast {
			for _, d := range w.settled(p.ID, n) {
				if d.Status != store.Delivered {
					t.Fatalf("a delivery to an endpoint that answers is %s", d.Status)
				}
			}
		}
		if _, err := w.hooks.ReplayEvents(t.Context(), w.viewer, hook.ReplayInput{EndpointID: fast[0].ID, Since: begun, FailedOnly: new(bool)}); err != nil {
			t.Fatal(err)
		}
		again := w.settled(fast[1].ID, n)[0]
		if _, err := w.hooks.Redeliver(t.Context(), w.viewer, again.ID()); err != nil {
			t.Fatal(err)
		}
		twice := func(all []*hook.Delivery) int {
			made := 0
			for _, d := range all {
				made += d.Attempts
			}
			return made
		}
		w.await(fast[0].ID, func(all []*hook.Delivery) bool { return twice(all) == 2*n })
		w.await(fast[1].ID, func(all []*hook.Delivery) bool { return twice(all) == n+1 })
		for _, p := range slow {
			for _, d := range w.await(p.ID, func([]*hook.Delivery) bool { return true }) {
				if d.Attempts != 0 || d.Due == nil {
					t.Fatalf("a delivery to an endpoint that hangs: %+v", d)
				}
			}
		}
		if got := len(hanging.got()); got > 8*len(slow) {
			t.Errorf("%d attempts at once to %d endpoints", got, len(slow))
		}
	})
}

// TestRotationMeetsARetry: what is tried again after a rotation is signed by the new secret, with the one before it or, with no
// overlap, without.
func TestRotationMeetsARetry(t *testing.T) {
	t.Parallel()
	for overlap, signs := range map[int]bool{24: true, 0: false} {
		w := newWorld(t, t.TempDir(), func(c *webhook.Config) { c.Policy.Backoff = time.Hour })
		r := newReceiver(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
		p, old := w.endpoint(r.URL, store.RunFinished)
		w.turn("")
		d := w.await(p.ID, func(all []*hook.Delivery) bool { return len(all) == 1 && all[0].Status == store.Retrying })[0]
		rotated, err := w.hooks.RotateSecret(t.Context(), w.viewer, p.ID, overlap)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.hooks.Redeliver(t.Context(), w.viewer, d.ID()); err != nil {
			t.Fatal(err)
		}
		w.await(p.ID, func(all []*hook.Delivery) bool { return all[0].Attempts == 2 })
		second := r.got()[1]
		for secret, want := range map[string]bool{rotated.Secret: true, old: signs} {
			oracle, err := standardwebhooks.NewWebhook(secret)
			if err != nil {
				t.Fatal(err)
			}
			if err := oracle.Verify(second.body, second.header); (err == nil) != want {
				t.Errorf("overlap of %d h: %v, want signed = %v", overlap, err, want)
			}
		}
	}
}

// TestALossIsMadeUpForOnce: the worker hears nothing of hundreds of events, then of one more, and while it reads the others it loses all
// that it is told. Each delivery is made, and none twice.
func TestALossIsMadeUpForOnce(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		w := newWorldOn(t, url, nil)
		const endpoints, talkers, turns = 5, 32, 16
		const all = endpoints * 3 * (talkers*turns + 1)
		r := newReceiver(t, func(http.ResponseWriter, *http.Request) { <-time.After(20 * time.Millisecond) }) // what is read waits for a while
		for i := range endpoints {
			w.endpoint(fmt.Sprintf("%s/%d", r.URL, i), store.EventTypes...)
		}
		w.deaf.Store(true)
		over := make(chan struct{})
		var telling, talking sync.WaitGroup
		telling.Go(func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(10 * time.Millisecond): // it has time for other things
					for range 500 {
						w.worker.Offer(nil)
					}
				}
			}
		})
		for range talkers {
			talking.Go(func() {
				for range turns {
					w.turn("")
				}
			})
		}
		talking.Wait()
		w.deaf.Store(false)
		w.turn("")
		for len(r.got()) < all {
			select {
			case <-w.rang:
			case <-time.After(30 * time.Second):
				t.Fatalf("%d deliveries were made, want %d", len(r.got()), all)
			}
		}
		close(over)
		telling.Wait()
		w.stop()
		if n := len(r.got()); n != all {
			t.Errorf("%d deliveries were made, want %d", n, all)
		}
	})
}

// TestStopHandsBack stops a worker while an endpoint hangs: what was not delivered goes out when the next one starts.
func TestStopHandsBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var mu sync.Mutex
	hang := make(chan struct{})
	arrived := make(chan struct{}, 100)
	r := newReceiver(t, func(_ http.ResponseWriter, req *http.Request) {
		arrived <- struct{}{}
		mu.Lock()
		h := hang
		mu.Unlock()
		select {
		case <-h:
		case <-req.Context().Done():
		}
	})
	w := newWorld(t, dir, func(c *webhook.Config) { c.Drain, c.Timeout = 10*time.Millisecond, 20*time.Second })
	p, _ := w.endpoint(r.URL, store.EventTypes...)
	w.turn("")
	<-arrived
	w.stop()
	close(hang)
	again := newWorld(t, dir, nil)
	for i, d := range again.settled(p.ID, 3) {
		if d.Status != store.Delivered || d.Attempts != 1 {
			t.Errorf("delivery %d: %s after %d attempts", i, d.Status, d.Attempts)
		}
	}
	ids := map[string]int{}
	for _, req := range r.got() {
		ids[req.header.Get("Webhook-Id")]++
	}
	if len(ids) != 3 {
		t.Errorf("%d events arrived: %s", len(ids), fmt.Sprint(ids))
	}
}

// TestDisablingEndsWhatWaits disables an endpoint while eight attempts hang and more deliveries wait in memory: none of those
// is sent, and they are recorded as skipped.
func TestDisablingEndsWhatWaits(t *testing.T) {
	onBoth(t, func(t *testing.T, url string) {
		w := newWorldOn(t, url, func(c *webhook.Config) { c.Timeout = 30 * time.Second })
		release := make(chan struct{})
		arrived := make(chan struct{}, 100)
		r := newReceiver(t, func(http.ResponseWriter, *http.Request) {
			arrived <- struct{}{}
			<-release
		})
		letGo := sync.OnceFunc(func() { close(release) })
		t.Cleanup(letGo)
		p, _ := w.endpoint(r.URL, store.RunFinished)
		const n = 30
		for range n {
			w.turn("")
		}
		for range 8 {
			<-arrived
		}
		disabled := store.Disabled
		if _, err := w.hooks.UpdateEndpoint(t.Context(), w.viewer, p.ID, hook.EndpointInput{Status: &disabled}); err != nil {
			t.Fatal(err)
		}
		letGo()
		count := func(all []*hook.Delivery) map[store.DeliveryStatus]int {
			of := map[store.DeliveryStatus]int{}
			for _, d := range all {
				of[d.Status]++
			}
			return of
		}
		got := count(w.await(p.ID, func(all []*hook.Delivery) bool { return count(all)[store.Delivered] >= 8 }))
		if got[store.Delivered] != 8 || got[store.Skipped] != n-8 || len(r.got()) != 8 {
			t.Errorf("%v, and %d requests", got, len(r.got()))
		}
	})
}

// slowToAnswer is a transport that has written each request at once, and its answer after a while. It costs next to no time
// itself, and tells when as many as wanted wait at once.
type slowToAnswer struct {
	wanted  int64
	waiting atomic.Int64
	came    chan struct{} // closed once they do
	ended   chan struct{}
	once    sync.Once
}

// RoundTrip implements http.RoundTripper.
func (s *slowToAnswer) RoundTrip(req *http.Request) (*http.Response, error) {
	if trace := httptrace.ContextClientTrace(req.Context()); trace != nil && trace.WroteRequest != nil {
		trace.WroteRequest(httptrace.WroteRequestInfo{})
	}
	if s.waiting.Add(1) == s.wanted {
		s.once.Do(func() { close(s.came) })
	}
	defer func() {
		s.waiting.Add(-1)
		s.ended <- struct{}{}
	}()
	select {
	case <-time.After(120 * time.Millisecond): // an attempt is young for 200
	case <-req.Context().Done():
	}
	return &http.Response{StatusCode: http.StatusNoContent, Header: http.Header{}, Body: http.NoBody, Request: req}, nil
}

// TestSlowAnswersTakeNoTurns has 80 endpoints take their time to answer, but less than makes an attempt old: more of them wait for
// their answers at once than there are tokens, for to wait takes none. On a busy machine that takes more than one try.
func TestSlowAnswersTakeNoTurns(t *testing.T) {
	t.Parallel()
	s := &slowToAnswer{wanted: 72, came: make(chan struct{}), ended: make(chan struct{}, 1000)}
	w := newWorld(t, t.TempDir(), func(cfg *webhook.Config) { cfg.Client, cfg.Timeout = &http.Client{Transport: s}, 30*time.Second })
	const slow = 80
	for range slow {
		w.endpoint("http://127.0.0.1/hook", store.RunFinished)
	}
	deadline := time.After(30 * time.Second)
	for {
		w.turn("")
		for range slow {
			select {
			case <-s.came:
				return
			case <-s.ended:
			case <-deadline:
				t.Fatalf("there were never %d attempts at once", s.wanted)
			}
		}
	}
}
