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
	"parley/store/hook"
)

const (
	userAgent  = "Backend-System-Webhook/1.0" // the specification's, to the letter
	keptAnswer = 16 << 10                     // bytes of an answer that are kept
)

// attempt makes one attempt, under one deadline from the dial to the last byte of the answer. The status of an answer counts as
// read once there is a permit for its outcome; ok is false if none came before the drain was over, or it was cut before.
func (w *Worker) attempt(t *task) (made *hook.Attempt, a answer, ok bool) {
	start, job := time.Now(), t.job
	made = &hook.Attempt{Number: job.Attempts + 1, Trigger: job.Trigger, StartedAt: store.At(start)}
	ctx, cancel := context.WithTimeout(w.ctx, w.cfg.Timeout)
	defer cancel()
	times := newTrace(start, &t.token)
	resp, class := w.post(times.on(ctx), t, start)
	took := time.Since(start)
	if resp != nil {
		defer func() { _ = resp.Body.Close() }()
	} else if errors.Is(context.Cause(ctx), errCut) {
		return nil, a, false
	}
	if !w.permit(t) {
		return nil, a, false
	}
	if a.class = class; resp != nil {
		// The status decides. The body is for the record: an error while reading it changes nothing.
		a = answer{status: resp.StatusCode, retryAfter: retryAfter(resp.Header.Get("Retry-After"), time.Now())}
		var raw []byte
		if resp.ContentLength != 0 { // most answers are empty
			reading := time.Now()
			raw, _ = io.ReadAll(io.LimitReader(resp.Body, keptAnswer))
			took += time.Since(reading)
		}
		body := text(raw)
		made.StatusCode, made.ResponseBody = &a.status, &body
	}
	made.DurationMs = int(took.Milliseconds())
	made.Timings = times.timings()
	return made, a, true
}

// post sends the job's document, and returns the answer as far as it is there with its header, or why there is none.
func (w *Worker) post(ctx context.Context, t *task, now time.Time) (resp *http.Response, class string) {
	job := t.job
	secrets, err := w.cfg.Hooks.SigningSecrets(job.EndpointID, t.target.Secrets, store.At(now))
	if err != nil {
		w.cfg.Log.Error("sign a delivery", "delivery", job.ID(), "error", err)
		return nil, "signing"
	}
	signature, err := egress.Sign(job.EventID, now, job.Body, secrets...)
	if err != nil {
		w.cfg.Log.Error("sign a delivery", "delivery", job.ID(), "error", err)
		return nil, "signing"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.target.URL, bytes.NewReader(job.Body))
	if err != nil {
		return nil, "url"
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
	resp, err = w.cfg.Client.Do(req)
	store.Failpoint("send.after")
	if err != nil {
		return nil, classify(err)
	}
	return resp, ""
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
