package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

const (
	endpoints   = 100 // as many as a business may have
	perChat     = 2   // events of type message.created
	outstanding = 60  // deliveries an endpoint that answers, made and not arrived, at most
	chatters    = 16
	senders     = 64 // of the bare loop: as many as the worker's tokens
	turns       = 2  // of each side in a round
)

// benchDeliver compares deliveries a second with full bookkeeping (each one durable before it is sent, its row with its attempt and
// outcome after) with a bare loop of signed POSTs to the same receiver, which is in this process for both. They take turns: the
// machine's pace changes within seconds.
func benchDeliver(ctx context.Context, r *rig) error {
	ratio, note, err := r.repeat(ctx, func(ctx context.Context) (string, []float64, error) {
		d, err := r.startDeliveries(ctx, 0, 0)
		if err != nil {
			return "", nil, err
		}
		defer d.end()
		var ours, theirs float64
		r := *r
		r.measure /= turns
		for range turns {
			rates, err := d.run(&r)
			if err == nil {
				err = d.settle()
			}
			if err != nil {
				return "", nil, err
			}
			ours += sum(rates) / turns
			bare, err := r.deliverBare(ctx, *d.to.body.Load())
			if err != nil {
				return "", nil, err
			}
			theirs += bare / turns
		}
		x := ours / theirs
		return fmt.Sprintf("parley %.0f/s   bare signed POSTs %.0f/s (%d bytes)   ratio %.2f", ours, theirs, len(*d.to.body.Load()), x), []float64{x}, nil
	})
	if err != nil {
		return err
	}
	fmt.Printf("deliver, %s: ratio %.2f (%s; %s)\n", r.mode, ratio[0], r.gates("gate 0.45, aim 0.75", "gate 0.40, aim 0.60"), note)
	return nil
}

func (r *rig) deliverBare(ctx context.Context, body []byte) (float64, error) {
	on := newStage(ctx)
	defer on.end()
	to, err := receive(on, 0)
	if err != nil {
		return 0, err
	}
	// The settings are those of egress.NewClient.
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		DialContext:  (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
		MaxIdleConns: 1024, MaxIdleConnsPerHost: senders, DisableCompression: true, ForceAttemptHTTP2: true,
	}}
	defer client.CloseIdleConnections()
	var stopped atomic.Bool
	var wg sync.WaitGroup
	failed := make(chan error, senders)
	for i := range senders {
		wg.Go(func() {
			for n := i; !stopped.Load(); n++ {
				if err := postSigned(ctx, client, to.urlOf(n%endpoints), body); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	rates, err := to.rates(ctx, r)
	stopped.Store(true)
	wg.Wait()
	select {
	case err = <-failed:
	default:
	}
	return sum(rates), err
}

var bareSecret = base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{7}, 32))

// postSigned sends what a delivery sends, and nothing is kept of it.
func postSigned(ctx context.Context, client *http.Client, url string, body []byte) error {
	key, err := base64.StdEncoding.DecodeString(bareSecret)
	if err != nil {
		return err
	}
	id, now := "evt_"+uuid.NewString(), strconv.FormatInt(time.Now().Unix(), 10)
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + now + "."))
	mac.Write(body)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = http.Header{
		"Content-Type": {"application/json"}, "User-Agent": {"bench"}, "Webhook-Id": {id}, "Webhook-Timestamp": {now},
		"Webhook-Signature": {"v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))},
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	_, err = io.Copy(io.Discard, res.Body)
	return err
}

// receiver is a customers' server with a path for each endpoint. The first so many take each request and never answer, or after
// a while.
type receiver struct {
	url     string
	hanging int
	answer  time.Duration // theirs, or never
	came    [endpoints]atomic.Int64
	arrived atomic.Int64           // at those that answer
	body    atomic.Pointer[[]byte] // the last one
}

func receive(on *stage, hanging int) (*receiver, error) {
	to := &receiver{hanging: hanging}
	var err error
	to.url, err = listen(on, to)
	return to, err
}

func (to *receiver) urlOf(endpoint int) string { return fmt.Sprintf("%s/%d", to.url, endpoint) }

func (to *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	i, wrong := strconv.Atoi(r.URL.Path[1:])
	if err != nil || wrong != nil || i >= endpoints {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	if i < to.hanging {
		var late <-chan time.Time
		if to.answer > 0 {
			late = time.After(to.answer)
		}
		select {
		case <-late:
		case <-r.Context().Done():
		}
		return
	}
	to.came[i].Add(1)
	to.arrived.Add(1)
	to.body.Store(&body)
}

// rates waits for the warm-up, and then measures what arrives a second at each endpoint.
func (to *receiver) rates(ctx context.Context, r *rig) (rates []float64, err error) {
	if err := pause(ctx, r.warmup); err != nil {
		return nil, err
	}
	var before [endpoints]int64
	for i := range before {
		before[i] = to.came[i].Load()
	}
	began := time.Now()
	if err := pause(ctx, r.measure); err != nil {
		return nil, err
	}
	took := time.Since(began).Seconds()
	for i := range before {
		rates = append(rates, float64(to.came[i].Load()-before[i])/took)
	}
	return rates, nil
}

func sum(rates []float64) (all float64) {
	for _, x := range rates {
		all += x
	}
	return all
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// deliveries are a server with all its endpoints registered, and chats that keep them busy.
type deliveries struct {
	*server
	to   *receiver
	made atomic.Int64 // for endpoints that answer
}

func (r *rig) startDeliveries(ctx context.Context, hanging int, answer time.Duration) (d *deliveries, err error) {
	s, err := r.start(ctx)
	if err != nil {
		return nil, err
	}
	d = &deliveries{server: s}
	if d.to, err = receive(s.stage, hanging); err == nil {
		d.to.answer = answer
		for i := range endpoints {
			if err = s.register(d.to.urlOf(i), "message.created"); err != nil {
				break
			}
		}
	}
	if err != nil {
		s.end()
		return nil, err
	}
	return d, nil
}

// run keeps so many deliveries outstanding that the worker never waits for chats, nor memory overflows, while it measures.
func (d *deliveries) run(r *rig) (rates []float64, err error) {
	ctx, stop := context.WithCancelCause(d.ctx)
	defer stop(nil)
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: chatters}}
	defer client.CloseIdleConnections()
	answering := int64(endpoints - d.to.hanging)
	enough := errors.New("enough")
	var wg sync.WaitGroup
	for range chatters {
		wg.Go(func() {
			session := ""
			for ctx.Err() == nil {
				if d.made.Load()-d.to.arrived.Load() > (outstanding-chatters*perChat)*answering {
					_ = pause(ctx, time.Millisecond)
					continue
				}
				d.made.Add(perChat * answering)
				var err error
				// A chat that has begun ends: what it made is counted.
				if session, err = chat(d.ctx, client, d.url, session); err != nil {
					stop(err)
					return
				}
			}
		})
	}
	rates, err = d.to.rates(ctx, r)
	stop(enough)
	wg.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, enough) {
		err = cause
	}
	return rates, err
}

const settleWithin = 20 * time.Second

// settle waits until everything has arrived and is written down, and says if something came twice: else the rate would be
// borrowed from later.
func (d *deliveries) settle() error {
	late := time.Now().Add(settleWithin)
	for time.Now().Before(late) {
		answer, err := d.post("/graphql", map[string]any{"query": `{ pending: deliveries(status: PENDING, first: 1) { nodes { id } }
			retrying: deliveries(status: RETRYING, first: 1) { nodes { id } } failed: deliveries(status: FAILED, first: 1) { nodes { id } } }`})
		if err != nil {
			return err
		}
		var left struct {
			Data map[string]struct{ Nodes []any }
		}
		if err := json.Unmarshal(answer, &left); err != nil || left.Data == nil {
			return fmt.Errorf("deliveries: %.200s", answer)
		}
		if made, arrived := d.made.Load(), d.to.arrived.Load(); arrived >= made && len(left.Data["pending"].Nodes) == 0 {
			if arrived > made || len(left.Data["retrying"].Nodes)+len(left.Data["failed"].Nodes) > 0 {
				fmt.Printf("deliver: %d of %d deliveries came twice, or failed\n", arrived-made, made)
			}
			return nil
		}
		if err := pause(d.ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("of %d deliveries %d have arrived %v after the last chat, or not all are written down", d.made.Load(), d.to.arrived.Load(), settleWithin)
}
