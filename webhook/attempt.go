package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"parley/egress"
	"parley/store"
)

const (
	userAgent   = "Backend-System-Webhook/1.0" // the specification's, to the letter
	keptAnswer  = 16 << 10                     // bytes of an answer that are kept
	leaseMargin = 5 * time.Second              // between the end of an attempt and that of its lease, for writing it down
)

// Lease is how long a claimed delivery is held: the attempt twice over, and time to write down its outcome.
func Lease(timeout time.Duration) time.Duration { return 2*timeout + 10*time.Second }

// attempt makes one attempt, under one deadline from the dial to the last byte of the answer.
func (w *Worker) attempt(ctx context.Context, t task) (*store.Attempt, answer) {
	start, job := time.Now(), t.job
	made := &store.Attempt{DeliveryID: job.DeliveryID, Number: job.Attempts + 1, Trigger: job.Trigger, StartedAt: store.At(start)}
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Timeout)
	defer cancel()
	times := newTrace(start, t.token)
	a, body := w.send(times.on(ctx), job, start)
	made.DurationMs = int(time.Since(start).Milliseconds())
	made.Timings = times.timings()
	if a.status != 0 {
		made.StatusCode, made.ResponseBody = &a.status, &body
	}
	return made, a
}

func (w *Worker) send(ctx context.Context, job *store.Job, now time.Time) (answer, string) {
	secrets, err := w.cfg.Store.SigningSecrets(job.EndpointID, job.Secrets, store.At(now))
	if err != nil {
		w.cfg.Log.Error("sign a delivery", "delivery", job.DeliveryID, "error", err)
		return answer{class: "signing"}, ""
	}
	signature, err := egress.Sign(job.EventID, now, job.Body, secrets...)
	if err != nil {
		w.cfg.Log.Error("sign a delivery", "delivery", job.DeliveryID, "error", err)
		return answer{class: "signing"}, ""
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, job.URL, bytes.NewReader(job.Body))
	if err != nil {
		return answer{class: "url"}, ""
	}
	values := [...]string{"application/json", userAgent, job.EventID, strconv.FormatInt(now.Unix(), 10), signature}
	req.Header = http.Header{
		"Content-Type":      values[0:1:1],
		"User-Agent":        values[1:2:2],
		"Webhook-Id":        values[2:3:3],
		"Webhook-Timestamp": values[3:4:4],
		"Webhook-Signature": values[4:5:5],
	}
	store.Failpoint("send.before")
	resp, err := w.cfg.Client.Do(req)
	store.Failpoint("send.after")
	if err != nil {
		return answer{class: classify(err)}, ""
	}
	defer func() { _ = resp.Body.Close() }()
	// The status decides. The body is for the record: an error while reading it changes nothing.
	var raw []byte
	if resp.ContentLength != 0 { // most answers are empty
		raw, _ = io.ReadAll(io.LimitReader(resp.Body, keptAnswer))
	}
	return answer{status: resp.StatusCode, retryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now())}, text(raw)
}

// text is what databases keep of an answer: valid UTF-8 without NUL, no longer than what was read.
func text(raw []byte) string {
	s := strings.ReplaceAll(strings.ToValidUTF8(string(raw), "\uFFFD"), "\x00", "")
	if len(s) <= keptAnswer {
		return s
	}
	return strings.ToValidUTF8(s[:keptAnswer], "") // without the half of a character at the cut
}

// classify names why there was no answer, in one stable word.
func classify(err error) string {
	var (
		dns     *net.DNSError
		unknown x509.UnknownAuthorityError
		host    x509.HostnameError
		invalid x509.CertificateInvalidError
		record  tls.RecordHeaderError
		verify  *tls.CertificateVerificationError
		op      *net.OpError
		stream  streamError
	)
	switch {
	case errors.Is(err, egress.ErrBlocked):
		return "blocked_address"
	case errors.Is(err, egress.ErrProxy), errors.As(err, &op) && op.Op == "proxyconnect":
		return "proxy"
	case errors.Is(err, context.DeadlineExceeded) || isTimeout(err):
		return "timeout"
	case errors.As(err, &dns):
		return "dns"
	case errors.As(err, &unknown), errors.As(err, &host), errors.As(err, &invalid), errors.As(err, &record), errors.As(err, &verify):
		return "tls"
	case strings.Contains(err.Error(), "header list larger") || strings.Contains(err.Error(), "response headers exceeded"):
		return "header_too_large" // net/http has no type for it
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection_refused"
	case errors.As(err, &stream) && stream.Cause != nil && stream.Cause.Error() == "received from peer",
		errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "connection_reset"
	case errors.As(err, &op) && op.Op == "dial":
		return "connect"
	}
	return "protocol"
}

// streamError is what ended one stream of HTTP/2. The type of net/http, which it does not export, turns into any of such fields.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string { return "stream error" }

func isTimeout(err error) bool {
	var network net.Error
	return errors.As(err, &network) && network.Timeout()
}
